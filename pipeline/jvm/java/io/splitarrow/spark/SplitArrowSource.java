package io.splitarrow.spark;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.SaveMode;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.BaseRelation;
import org.apache.spark.sql.sources.CreatableRelationProvider;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Tuple2;
import scala.collection.Iterator;

/**
 * The data source {@code splitarrow}: reads datasets by columns.
 *
 * <p>The data source of the same name that is written in Python reads the datasets that
 * this reader cannot read. Where both are loaded, Spark selects this one.
 *
 * <p>Spark passes the mode of {@code df.write} only to a source of its first interface, {@link
 * CreatableRelationProvider}.
 */
public final class SplitArrowSource
    implements TableProvider, CreatableRelationProvider, DataSourceRegister {
  private static final Set<String> RESERVED =
      Set.of(
          TableCatalog.PROP_COMMENT,
          TableCatalog.PROP_EXTERNAL,
          TableCatalog.PROP_IS_MANAGED_LOCATION,
          TableCatalog.PROP_LOCATION,
          TableCatalog.PROP_OWNER,
          TableCatalog.PROP_PROVIDER);
  private static final String COPY = TableCatalog.OPTION_PREFIX;

  private Described described;

  @Override
  public String shortName() {
    return "splitarrow";
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap properties) {
    CaseInsensitiveStringMap options = clean(properties.asCaseSensitiveMap());
    ReaderChoice choice = ReaderChoice.of(options);
    if (choice == ReaderChoice.PYTHON) {
      return PythonSource.of(options).schema();
    }
    Described found = Described.of(options);
    if (!found.isReadable()) {
      choice.fallBack(found.dataset(), found.problem());
      return PythonSource.of(options).schema();
    }
    described = found;
    return found.schema();
  }

  @Override
  public Table getTable(
      StructType schema, Transform[] partitioning, Map<String, String> properties) {
    boolean isInCatalog = properties.containsKey(TableCatalog.PROP_PROVIDER);
    return new SplitArrowTable(
        "splitarrow", schema, clean(properties), described, partitioning, isInCatalog);
  }

  /** Returns the options without what the session catalog adds: what it knows about a table. */
  private static CaseInsensitiveStringMap clean(Map<String, String> properties) {
    Map<String, String> options = new HashMap<>(properties);
    options.keySet().removeIf(name -> RESERVED.contains(name) || name.startsWith(COPY));
    CaseInsensitiveStringMap cleaned = new CaseInsensitiveStringMap(options);
    if (cleaned.containsKey("uri") && cleaned.containsKey("dataset")) {
      options.keySet().removeIf("path"::equalsIgnoreCase); // where a table would be
    }
    return new CaseInsensitiveStringMap(options);
  }

  /** Returns the table of the dataset that options name. */
  static SplitArrowTable load(String name, CaseInsensitiveStringMap options) {
    SplitArrowSource source = new SplitArrowSource();
    StructType schema = source.inferSchema(options);
    Transform[] none = {};
    return new SplitArrowTable(name, schema, clean(options), source.described, none, true);
  }

  @Override
  public BaseRelation createRelation(
      SQLContext context,
      SaveMode mode,
      scala.collection.immutable.Map<String, String> options,
      Dataset<Row> rows) {
    Map<String, String> values = new HashMap<>();
    // The converters of Scala 2.12 and 2.13 have different names.
    for (Iterator<Tuple2<String, String>> pairs = options.iterator(); pairs.hasNext(); ) {
      Tuple2<String, String> pair = pairs.next();
      values.put(pair._1(), pair._2());
    }
    DatasetWriter.save(rows, mode, values);
    return new BaseRelation() {
      @Override
      public SQLContext sqlContext() {
        return context;
      }

      @Override
      public StructType schema() {
        return rows.schema();
      }
    };
  }

  /**
   * Accepts every type: the writer refuses those that it cannot write, by name.
   *
   * <p>It overrides a method that Spark 3.5 does not have.
   */
  public boolean supportsDataType(DataType type) {
    return true;
  }
}
