package io.splitarrow.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A column whose rows refer to the rows of other columns: a dictionary, or runs. */
final class IndirectColumn extends Column {
  /** Maps a row to a row of the values, or to -1 if it is null. */
  interface Rows {
    int of(int row);
  }

  private final Rows rows;
  private final Segments values;

  /** Consecutive columns with the values: a dictionary, and the deltas that followed it. */
  record Segments(ColumnVector[] columns, int[] ends) {
    int find(int row) {
      int index = 0;
      while (row >= ends[index]) {
        index++;
      }
      return index;
    }

    int local(int segment, int row) {
      return segment == 0 ? row : row - ends[segment - 1];
    }

    int length() {
      return ends.length == 0 ? 0 : ends[ends.length - 1];
    }

    Segments child(int ordinal) {
      ColumnVector[] children = new ColumnVector[columns.length];
      for (int index = 0; index < children.length; index++) {
        children[index] = columns[index].getChild(ordinal);
      }
      return new Segments(children, ends);
    }
  }

  IndirectColumn(DataType type, int length, Rows rows, Segments values) {
    super(type, length, Buffer.EMPTY, 0);
    this.rows = rows;
    this.values = values;
  }

  private ColumnVector column(int target) {
    return values.columns[values.find(target)];
  }

  private int local(int target) {
    return values.local(values.find(target), target);
  }

  @Override
  public boolean hasNull() {
    return numNulls() > 0;
  }

  @Override
  public int numNulls() {
    int count = 0;
    for (int row = 0; row < length; row++) {
      count += isNullAt(row) ? 1 : 0;
    }
    return count;
  }

  @Override
  public boolean isNullAt(int row) {
    int target = rows.of(row);
    return target < 0 || column(target).isNullAt(local(target));
  }

  @Override
  public boolean getBoolean(int row) {
    int target = rows.of(row);
    return target < 0 ? false : column(target).getBoolean(local(target));
  }

  @Override
  public byte getByte(int row) {
    int target = rows.of(row);
    return target < 0 ? (byte) 0 : column(target).getByte(local(target));
  }

  @Override
  public short getShort(int row) {
    int target = rows.of(row);
    return target < 0 ? (short) 0 : column(target).getShort(local(target));
  }

  @Override
  public int getInt(int row) {
    int target = rows.of(row);
    return target < 0 ? 0 : column(target).getInt(local(target));
  }

  @Override
  public long getLong(int row) {
    int target = rows.of(row);
    return target < 0 ? 0 : column(target).getLong(local(target));
  }

  @Override
  public float getFloat(int row) {
    int target = rows.of(row);
    return target < 0 ? 0 : column(target).getFloat(local(target));
  }

  @Override
  public double getDouble(int row) {
    int target = rows.of(row);
    return target < 0 ? 0 : column(target).getDouble(local(target));
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    int target = rows.of(row);
    return target < 0 ? null : column(target).getDecimal(local(target), precision, scale);
  }

  @Override
  public UTF8String getUTF8String(int row) {
    int target = rows.of(row);
    return target < 0 ? null : column(target).getUTF8String(local(target));
  }

  @Override
  public byte[] getBinary(int row) {
    int target = rows.of(row);
    return target < 0 ? null : column(target).getBinary(local(target));
  }

  @Override
  public ColumnarArray getArray(int row) {
    int target = rows.of(row);
    return target < 0 ? null : column(target).getArray(local(target));
  }

  @Override
  public ColumnarMap getMap(int row) {
    int target = rows.of(row);
    return target < 0 ? null : column(target).getMap(local(target));
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    Segments children = values.child(ordinal);
    if (children.columns().length == 0) {
      return new NumberColumns.Nulls(type, length);
    }
    return new IndirectColumn(children.columns()[0].dataType(), length, rows, children);
  }
}
