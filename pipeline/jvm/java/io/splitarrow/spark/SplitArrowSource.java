package io.splitarrow.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The data source {@code splitarrow_jvm}: reads datasets by columns.
 *
 * <p>Writes and streams belong to the data source {@code splitarrow}, which is written in Python,
 * and so do datasets that this reader cannot read.
 */
public final class SplitArrowSource implements TableProvider, DataSourceRegister {
  private Described described;

  @Override
  public String shortName() {
    return "splitarrow_jvm";
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
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
    CaseInsensitiveStringMap options = new CaseInsensitiveStringMap(properties);
    return new SplitArrowTable(schema, options, described);
  }
}
