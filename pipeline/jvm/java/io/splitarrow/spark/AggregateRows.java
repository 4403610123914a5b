package io.splitarrow.spark;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/** Delivers the values of aggregates, a row for each group. */
final class AggregateRows implements PartitionReader<ColumnarBatch> {
  private final StructType schema;
  private final Iterator<ArrayList<String>> rows;
  private ColumnarBatch batch;

  AggregateRows(StructType schema, List<ArrayList<String>> rows) {
    this.schema = schema;
    this.rows = rows.iterator();
  }

  /** Returns values in Spark's internal form as a row. */
  static InternalRow toRow(StructType schema, ArrayList<String> values) {
    AggregateRows rows = new AggregateRows(schema, List.of(values));
    rows.next();
    return rows.get().getRow(0).copy();
  }

  private static ColumnVector column(DataType type, String value) {
    ConstantColumnVector column = new ConstantColumnVector(1, type);
    if (value == null) {
      column.setNull();
      return column;
    }
    column.setNotNull();
    if (type instanceof ByteType) {
      column.setByte(Byte.parseByte(value));
    } else if (type instanceof ShortType) {
      column.setShort(Short.parseShort(value));
    } else if (type instanceof IntegerType || type instanceof DateType) {
      column.setInt(Integer.parseInt(value));
    } else if (type instanceof FloatType) {
      column.setFloat(Float.parseFloat(value));
    } else if (type instanceof DoubleType) {
      column.setDouble(Double.parseDouble(value));
    } else if (type instanceof StringType) {
      column.setUtf8String(UTF8String.fromString(value));
    } else if (type instanceof DecimalType decimal) {
      BigDecimal exact = new BigDecimal(value);
      column.setDecimal(
          Decimal.apply(exact, decimal.precision(), decimal.scale()), decimal.precision());
    } else {
      column.setLong(Long.parseLong(value)); // counts, bigint and timestamps
    }
    return column;
  }

  @Override
  public boolean next() {
    if (!rows.hasNext()) {
      return false;
    }
    List<String> values = rows.next();
    ColumnVector[] columns = new ColumnVector[values.size()];
    for (int index = 0; index < columns.length; index++) {
      columns[index] = column(schema.fields()[index].dataType(), values.get(index));
    }
    batch = new ColumnarBatch(columns, 1);
    return true;
  }

  @Override
  public ColumnarBatch get() {
    return batch;
  }

  @Override
  public void close() {}
}
