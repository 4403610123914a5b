package io.splitarrow.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of strings and binaries. */
final class BytesColumns {
  private BytesColumns() {}

  /** A column whose values are ranges of memory. */
  abstract static class Ranges extends Column {
    Ranges(DataType type, int length, Buffer validity, int nulls) {
      super(type, length, validity, nulls);
    }

    abstract long start(int row);

    abstract int size(int row);

    @Override
    public UTF8String getUTF8String(int row) {
      return isNullAt(row) ? null : UTF8String.fromAddress(null, start(row), size(row));
    }

    @Override
    public byte[] getBinary(int row) {
      if (isNullAt(row)) {
        return null;
      }
      byte[] bytes = new byte[size(row)];
      Platform.copyMemory(null, start(row), bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length);
      return bytes;
    }
  }

  /** Values between offsets of 32 bits. */
  static final class Small extends Ranges {
    private final Buffer offsets;
    private final long data;

    Small(DataType type, int length, Buffer validity, int nulls, Buffer offsets, Buffer data)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.offsets = Offsets.check32(offsets, length, data.length());
      this.data = data.address();
    }

    @Override
    long start(int row) {
      return data + offsets.int32(row);
    }

    @Override
    int size(int row) {
      return offsets.int32(row + 1) - offsets.int32(row);
    }
  }

  /** Values between offsets of 64 bits. */
  static final class Large extends Ranges {
    private final Buffer offsets;
    private final long data;

    Large(DataType type, int length, Buffer validity, int nulls, Buffer offsets, Buffer data)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.offsets = Offsets.check64(offsets, length, data.length());
      this.data = data.address();
    }

    @Override
    long start(int row) {
      return data + offsets.int64(row);
    }

    @Override
    int size(int row) {
      return Math.toIntExact(offsets.int64(row + 1) - offsets.int64(row));
    }
  }

  /** Values of one size. */
  static final class Fixed extends Ranges {
    private final long data;
    private final int width;

    Fixed(DataType type, int length, Buffer validity, int nulls, Buffer data, int width)
        throws ReadFailure {
      super(type, length, validity, nulls);
      if (width > 0) {
        data.require(length, width);
      }
      this.data = data.address();
      this.width = width;
    }

    @Override
    long start(int row) {
      return data + (long) row * width;
    }

    @Override
    int size(int row) {
      return width;
    }
  }

  /** Views: 16 bytes each, with short values in place and long ones in one of several buffers. */
  static final class Views extends Ranges {
    private static final int IN_PLACE = 12;
    private final Buffer views;
    private final Buffer[] data;

    Views(DataType type, int length, Buffer validity, int nulls, Buffer views, Buffer[] data)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.views = views.require(length, 16);
      this.data = data;
      for (int row = 0; row < length; row++) {
        if (!isNullAt(row)) {
          check(row);
        }
      }
    }

    private void check(int row) throws ReadFailure {
      int size = size(row);
      if (size >= 0 && size <= IN_PLACE) {
        return;
      }
      int index = views.int32(4L * row + 2);
      int offset = views.int32(4L * row + 3);
      boolean inside =
          size > 0
              && index >= 0
              && index < data.length
              && offset >= 0
              && (long) offset + size <= data[index].length();
      if (!inside) {
        throw ReadFailure.invalid("a view points outside of its buffers");
      }
    }

    @Override
    long start(int row) {
      if (size(row) <= IN_PLACE) {
        return views.address() + 16L * row + 4;
      }
      return data[views.int32(4L * row + 2)].address() + views.int32(4L * row + 3);
    }

    @Override
    int size(int row) {
      return views.int32(4L * row);
    }
  }
}
