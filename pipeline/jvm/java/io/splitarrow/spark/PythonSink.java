package io.splitarrow.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The Python source under a name that does not lead back to {@link SplitArrowSource}.
 *
 * <p>Spark creates it by the name of its class.
 */
public final class PythonSink implements TableProvider {
  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    throw new UnsupportedOperationException("this data source only writes");
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitions, Map<String, String> options) {
    return PythonSource.of(new CaseInsensitiveStringMap(options)).table(schema);
  }
}
