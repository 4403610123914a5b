package io.splitarrow.spark;

import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The data source {@code splitarrow}, which is written in Python. */
final class PythonSource {
  private static final Set<String> OWN = Set.of(ReaderChoice.OPTION, "memory_limit", "folder");

  private final PythonDataSourceV2 source = new PythonDataSourceV2();
  private final CaseInsensitiveStringMap options;

  private PythonSource(CaseInsensitiveStringMap options) {
    this.options = options;
    source.setShortName("splitarrow");
  }

  static PythonSource of(CaseInsensitiveStringMap options) {
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
