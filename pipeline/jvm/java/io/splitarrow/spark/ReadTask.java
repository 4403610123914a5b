package io.splitarrow.spark;

import java.io.Serializable;
import java.util.HashMap;
import java.util.List;
import org.apache.spark.sql.types.StructType;

/**
 * What all tasks of a read have in common.
 *
 * @param options the options of the data source, which may contain a token
 * @param dataset the name of the dataset
 * @param schema the columns to deliver
 * @param columns the columns to request: those of the schema, or one if it has none
 * @param metadata the column that states where rows are stored; null if no query needs it
 * @param memoryLimit the memory of a task outside of the heap, in bytes
 * @param python the interpreter that renews tickets on the executors
 * @param lease what keeps the files of a folder from being removed; null if a daemon does
 */
record ReadTask(
    HashMap<String, String> options,
    String dataset,
    StructType schema,
    StructType columns,
    RowMetadata metadata,
    Timeouts timeouts,
    long memoryLimit,
    String python,
    FolderLease lease)
    implements Serializable {

  List<String> columnNames() {
    return List.of(columns.fieldNames());
  }

  @Override
  public String toString() {
    return dataset; // the options may contain a token
  }
}
