package io.splitarrow.spark;

import java.io.IOException;
import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The column {@code _metadata}, which states where a row is stored.
 *
 * @param type the fields that a query needs
 * @param dataset the name of the dataset
 * @param version the version; empty if the server reports none
 * @param isAlone whether the query needs no other column, and all rows
 */
record RowMetadata(StructType type, String dataset, String version, boolean isAlone)
    implements Serializable {
  static final String NAME = "_metadata";
  private static final StructType TYPE =
      new StructType()
          .add("dataset", DataTypes.StringType)
          .add("version", DataTypes.StringType)
          .add("shard", DataTypes.IntegerType)
          .add("shard_rows", DataTypes.LongType);

  static final MetadataColumn COLUMN =
      new MetadataColumn() {
        @Override
        public String name() {
          return NAME;
        }

        @Override
        public DataType dataType() {
          return TYPE;
        }

        @Override
        public String comment() {
          return "the dataset, the version and the shard of a row";
        }
      };

  /** Returns the fields of the column that a query needs; null if it needs none. */
  static StructType find(StructType required) {
    return List.of(required.fieldNames()).contains(NAME)
        ? (StructType) required.apply(NAME).dataType()
        : null;
  }

  /** Returns a reader of a partition that has this column after the others. */
  PartitionReader<ColumnarBatch> read(ReadTask task, ShardPartition partition) {
    boolean isCounted =
        isAlone && partition.shards().stream().allMatch(shard -> shard.rows() >= 0);
    return isCounted ? new Counts(partition) : new Rows(new PartitionColumns(task, partition));
  }

  private ConstantColumnVector column(Shard shard, int rows) {
    ConstantColumnVector column = new ConstantColumnVector(rows, type);
    column.setNotNull();
    StructField[] fields = type.fields();
    for (int index = 0; index < fields.length; index++) {
      ConstantColumnVector child = new ConstantColumnVector(rows, fields[index].dataType());
      child.setNotNull();
      switch (fields[index].name()) {
        case "dataset" -> child.setUtf8String(UTF8String.fromString(dataset));
        case "version" -> setText(child, version);
        case "shard" -> child.setInt(shard.ordinal());
        default -> setCount(child, shard.rows());
      }
      column.setChild(index, child);
    }
    return column;
  }

  private static void setText(ConstantColumnVector column, String text) {
    if (text.isEmpty()) {
      column.setNull();
    } else {
      column.setUtf8String(UTF8String.fromString(text));
    }
  }

  private static void setCount(ConstantColumnVector column, long count) {
    if (count < 0) {
      column.setNull();
    } else {
      column.setLong(count);
    }
  }

  /** The rows of shards, with this column after the others. */
  private final class Rows implements PartitionReader<ColumnarBatch> {
    private final PartitionColumns columns;

    Rows(PartitionColumns columns) {
      this.columns = columns;
    }

    @Override
    public boolean next() throws IOException {
      return columns.next();
    }

    @Override
    public ColumnarBatch get() {
      ColumnarBatch batch = columns.get();
      ColumnVector[] found = new ColumnVector[batch.numCols() + 1];
      for (int index = 0; index < batch.numCols(); index++) {
        found[index] = batch.column(index);
      }
      found[batch.numCols()] = column(columns.shard(), batch.numRows());
      return new ColumnarBatch(found, batch.numRows());
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return columns.currentMetricsValues();
    }

    @Override
    public void close() throws IOException {
      columns.close();
    }
  }

  /** This column alone for shards with a known number of rows, which are not read. */
  private final class Counts implements PartitionReader<ColumnarBatch> {
    private static final int MAX_ROWS = 1 << 20;

    private final List<Shard> shards;
    private long left;
    private int index = -1;
    private long leftOfShard;
    private ColumnarBatch batch;

    Counts(ShardPartition partition) {
      shards = partition.shards();
      left = partition.limit() < 0 ? Long.MAX_VALUE : partition.limit();
    }

    @Override
    public boolean next() {
      while (leftOfShard == 0 && index + 1 < shards.size()) {
        leftOfShard = shards.get(++index).rows();
      }
      int rows = (int) Math.min(Math.min(left, leftOfShard), MAX_ROWS);
      if (rows == 0) {
        return false;
      }
      left -= rows;
      leftOfShard -= rows;
      batch = new ColumnarBatch(new ColumnVector[] {column(shards.get(index), rows)}, rows);
      return true;
    }

    @Override
    public ColumnarBatch get() {
      return batch;
    }

    @Override
    public void close() {}
  }
}
