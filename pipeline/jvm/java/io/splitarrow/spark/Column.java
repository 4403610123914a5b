package io.splitarrow.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A column that reads Arrow buffers in place. The batch owns the memory.
 *
 * <p>{@link ColumnDecoder} checks the sizes of all buffers before it creates a column, so that no
 * row below the length can lead outside of them.
 */
abstract class Column extends ColumnVector {
  final int length;
  private final Buffer validity;
  private final int nulls;

  /**
   * @param validity one bit per row, or an empty buffer if no row is null
   * @param nulls the number of rows that are null
   */
  Column(DataType type, int length, Buffer validity, int nulls) {
    super(type);
    this.length = length;
    this.validity = nulls == 0 ? Buffer.EMPTY : validity;
    this.nulls = nulls;
  }

  @Override
  public void close() {}

  @Override
  public boolean hasNull() {
    return nulls > 0;
  }

  @Override
  public int numNulls() {
    return nulls;
  }

  @Override
  public boolean isNullAt(int row) {
    return nulls != 0 && (validity.length() == 0 || !validity.bit(row));
  }

  @Override
  public boolean getBoolean(int row) {
    throw unsupported();
  }

  @Override
  public byte getByte(int row) {
    throw unsupported();
  }

  @Override
  public short getShort(int row) {
    throw unsupported();
  }

  @Override
  public int getInt(int row) {
    throw unsupported();
  }

  @Override
  public long getLong(int row) {
    throw unsupported();
  }

  @Override
  public float getFloat(int row) {
    throw unsupported();
  }

  @Override
  public double getDouble(int row) {
    throw unsupported();
  }

  @Override
  public ColumnarArray getArray(int row) {
    throw unsupported();
  }

  @Override
  public ColumnarMap getMap(int row) {
    throw unsupported();
  }

  @Override
  public Decimal getDecimal(int row, int precision, int scale) {
    throw unsupported();
  }

  @Override
  public UTF8String getUTF8String(int row) {
    throw unsupported();
  }

  @Override
  public byte[] getBinary(int row) {
    throw unsupported();
  }

  @Override
  public ColumnVector getChild(int ordinal) {
    throw unsupported();
  }

  private UnsupportedOperationException unsupported() {
    return new UnsupportedOperationException(getClass().getSimpleName() + " of " + type);
  }
}
