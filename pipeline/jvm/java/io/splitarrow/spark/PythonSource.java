package io.splitarrow.spark;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The data source {@code splitarrow}, which is written in Python. Spark 3.5 cannot have it. */
final class PythonSource {
  static final String MISSING = "Spark 3.5 has no data sources in Python";
  private static final Set<String> OWN = Set.of(ReaderChoice.OPTION, "memory_limit", "folder");
  private static final Class<?> PROVIDER =
      find("org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2");

  private final TableProvider source;
  private final CaseInsensitiveStringMap options;

  private PythonSource(CaseInsensitiveStringMap options) {
    this.options = options;
    try {
      source = (TableProvider) PROVIDER.getConstructor().newInstance();
      PROVIDER.getMethod("setShortName", String.class).invoke(source, "splitarrow");
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException("this Spark is not supported: " + error, error);
    }
  }

  private static Class<?> find(String name) {
    try {
      return Class.forName(name);
    } catch (ClassNotFoundException error) {
      return null;
    }
  }

  /** Returns whether this Spark can have data sources that are written in Python. */
  static boolean isSupported() {
    return PROVIDER != null;
  }

  /**
   * Returns the source with some options.
   *
   * @throws IllegalArgumentException if this Spark cannot have it
   */
  static PythonSource of(CaseInsensitiveStringMap options) {
    if (!isSupported()) {
      throw new IllegalArgumentException(
          MISSING + ": leave the option 'reader' at 'auto' or 'jvm'");
    }
    return new PythonSource(without(options));
  }

  /** Returns the options without those that only the reader in the JVM has. */
  static CaseInsensitiveStringMap without(CaseInsensitiveStringMap options) {
    Map<String, String> rest = new HashMap<>(options.asCaseSensitiveMap());
    rest.keySet().removeIf(name -> OWN.contains(name.toLowerCase(Locale.ROOT)));
    return new CaseInsensitiveStringMap(rest);
  }

  StructType schema() {
    return source.inferSchema(options);
  }

  Table table(StructType schema) {
    return source.getTable(schema, new Transform[0], options.asCaseSensitiveMap());
  }
}
