package io.splitarrow.spark;

import java.math.BigDecimal;
import java.math.BigInteger;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.unsafe.Platform;

/** The columns of values with a fixed width. */
final class NumberColumns {
  private NumberColumns() {}

  /** Values of one bit, or of one byte (the extension type arrow.bool8). */
  static final class Booleans extends Column {
    private final Buffer values;
    private final boolean bytes;

    Booleans(DataType type, int length, Buffer validity, int nulls, Buffer values, boolean bytes)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.values = bytes ? values.require(length, 1) : values.requireBits(length);
      this.bytes = bytes;
    }

    @Override
    public boolean getBoolean(int row) {
      return bytes ? values.int8(row) != 0 : values.bit(row);
    }
  }

  static final class Bytes extends Column {
    private final Buffer values;

    Bytes(DataType type, int length, Buffer validity, int nulls, Buffer values) throws ReadFailure {
      super(type, length, validity, nulls);
      this.values = values.require(length, 1);
    }

    @Override
    public byte getByte(int row) {
      return values.int8(row);
    }
  }

  /** int16, or uint8. */
  static final class Shorts extends Column {
    private final Buffer values;
    private final boolean unsigned;

    Shorts(DataType type, int length, Buffer validity, int nulls, Buffer values, boolean unsigned)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.values = values.require(length, unsigned ? 1 : 2);
      this.unsigned = unsigned;
    }

    @Override
    public short getShort(int row) {
      return unsigned ? (short) (values.int8(row) & 0xff) : values.int16(row);
    }
  }

  /** int32 and dates. */
  static final class Ints extends Column {
    private final Buffer values;

    Ints(DataType type, int length, Buffer validity, int nulls, Buffer values) throws ReadFailure {
      super(type, length, validity, nulls);
      this.values = values.require(length, 4);
    }

    @Override
    public int getInt(int row) {
      return values.int32(row);
    }
  }

  static final class UnsignedShorts extends Column {
    private final Buffer values;

    UnsignedShorts(DataType type, int length, Buffer validity, int nulls, Buffer values)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.values = values.require(length, 2);
    }

    @Override
    public int getInt(int row) {
      return values.int16(row) & 0xffff;
    }
  }

  /** date64: milliseconds, in whole days. */
  static final class Days extends Column {
    private static final long DAY = 86_400_000L;
    private final Buffer values;

    Days(DataType type, int length, Buffer validity, int nulls, Buffer values) throws ReadFailure {
      super(type, length, validity, nulls);
      this.values = values.require(length, 8);
      for (int row = 0; row < length; row++) {
        long value = values.int64(row);
        if ((value % DAY != 0 || (int) (value / DAY) != value / DAY) && !isNullAt(row)) {
          throw ReadFailure.invalid("a date64 is not a whole day that Spark can hold");
        }
      }
    }

    @Override
    public int getInt(int row) {
      return (int) (values.int64(row) / DAY);
    }
  }

  static final class Longs extends Column {
    private final Buffer values;

    Longs(DataType type, int length, Buffer validity, int nulls, Buffer values) throws ReadFailure {
      super(type, length, validity, nulls);
      this.values = values.require(length, 8);
    }

    @Override
    public long getLong(int row) {
      return values.int64(row);
    }
  }

  /** int32 or uint32 as 64 bits, times a factor: time32, uint32. */
  static final class WidenedInts extends Column {
    private final Buffer values;
    private final long mask;
    private final long factor;

    WidenedInts(
        DataType type,
        int length,
        Buffer validity,
        int nulls,
        Buffer values,
        boolean unsigned,
        long factor)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.values = values.require(length, 4);
      this.mask = unsigned ? 0xffffffffL : -1L;
      this.factor = factor;
    }

    @Override
    public long getLong(int row) {
      return (values.int32(row) & mask) * factor;
    }
  }

  /** 64 bits in another unit of time than Spark has. A value that would change is refused. */
  static final class ScaledLongs extends Column {
    private final Buffer values;
    private final long factor;
    private final long divisor;

    ScaledLongs(
        DataType type,
        int length,
        Buffer validity,
        int nulls,
        Buffer values,
        long factor,
        long divisor)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.values = values.require(length, 8);
      this.factor = factor;
      this.divisor = divisor;
      long limit = Long.MAX_VALUE / factor;
      for (int row = 0; row < length; row++) {
        long value = values.int64(row);
        boolean exact = value % divisor == 0 && value <= limit && value >= -limit;
        if (!exact && !isNullAt(row)) {
          throw ReadFailure.invalid("the value " + value + " of " + type.sql() + " is not exact");
        }
      }
    }

    @Override
    public long getLong(int row) {
      return values.int64(row) / divisor * factor;
    }
  }

  /** float32 or float16. */
  static final class Floats extends Column {
    private final Buffer values;
    private final boolean half;

    Floats(DataType type, int length, Buffer validity, int nulls, Buffer values, boolean half)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.values = values.require(length, half ? 2 : 4);
      this.half = half;
    }

    @Override
    public float getFloat(int row) {
      return half ? widen(values.int16(row)) : values.float32(row);
    }

    private static float widen(short bits) {
      int sign = (bits & 0x8000) << 16;
      int exponent = bits >> 10 & 0x1f;
      int mantissa = bits & 0x3ff;
      if (exponent == 0) {
        float magnitude = mantissa * 0x1p-24f;
        return sign == 0 ? magnitude : -magnitude;
      }
      int biased = exponent == 31 ? 255 : exponent + 112;
      return Float.intBitsToFloat(sign | biased << 23 | mantissa << 13);
    }
  }

  static final class Doubles extends Column {
    private final Buffer values;

    Doubles(DataType type, int length, Buffer validity, int nulls, Buffer values)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.values = values.require(length, 8);
    }

    @Override
    public double getDouble(int row) {
      return values.float64(row);
    }
  }

  /** Signed decimals of 4, 8, 16 or 32 bytes, or uint64 (width -8). */
  static final class Decimals extends Column {
    private final Buffer values;
    private final int width;
    private final boolean unsigned;

    Decimals(DataType type, int length, Buffer validity, int nulls, Buffer values, int width)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.width = Math.abs(width);
      this.unsigned = width < 0;
      this.values = values.require(length, this.width);
    }

    @Override
    public Decimal getDecimal(int row, int precision, int scale) {
      if (isNullAt(row)) {
        return null;
      }
      long low = width == 4 ? values.int32(row) : values.int64((long) row * (width / 8));
      boolean small = !unsigned;
      for (int word = 1; word < width / 8; word++) {
        small &= values.int64((long) row * (width / 8) + word) == low >> 63;
      }
      if (small && precision <= Decimal.MAX_LONG_DIGITS()) {
        return Decimal.createUnsafe(low, precision, scale);
      }
      return Decimal.apply(new BigDecimal(wide(row), scale), precision, scale);
    }

    private BigInteger wide(int row) {
      int bytes = unsigned ? width + 1 : width; // a leading zero makes the value positive
      byte[] bigEndian = new byte[bytes];
      long start = values.address() + (long) row * width;
      for (int index = 0; index < width; index++) {
        bigEndian[bytes - 1 - index] = Platform.getByte(null, start + index);
      }
      return new BigInteger(bigEndian);
    }
  }

  /** Intervals of months, days and nanoseconds, which must be whole microseconds. */
  static final class Intervals extends Column {
    private final Column[] parts = new Column[3];

    Intervals(DataType type, int length, Buffer validity, int nulls, Buffer values)
        throws ReadFailure {
      super(type, length, validity, nulls);
      values.require(length, 16);
      for (int row = 0; row < length; row++) {
        if (values.int64(2L * row + 1) % 1000 != 0 && !isNullAt(row)) {
          throw ReadFailure.invalid("an interval is not a whole number of microseconds");
        }
      }
      for (int index = 0; index < parts.length; index++) {
        parts[index] = new IntervalPart(type, length, values, index);
      }
    }

    @Override
    public ColumnVector getChild(int ordinal) {
      return parts[ordinal];
    }
  }

  /** The months, the days or the microseconds of intervals. */
  private static final class IntervalPart extends Column {
    private final Buffer values;
    private final int index;

    IntervalPart(DataType type, int length, Buffer values, int index) {
      super(type, length, Buffer.EMPTY, 0);
      this.values = values;
      this.index = index;
    }

    @Override
    public int getInt(int row) {
      return values.int32(4L * row + index);
    }

    @Override
    public long getLong(int row) {
      return values.int64(2L * row + 1) / 1000;
    }
  }

  /** A column without values. */
  static final class Nulls extends Column {
    Nulls(DataType type, int length) {
      super(type, length, Buffer.EMPTY, length);
    }
  }
}
