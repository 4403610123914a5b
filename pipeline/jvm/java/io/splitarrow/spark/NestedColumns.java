package io.splitarrow.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;

/** The columns of lists, maps and structs. */
final class NestedColumns {
  private NestedColumns() {}

  /** Where the elements of each row are. */
  interface Extents {
    int start(int row);

    int size(int row);
  }

  static Extents between32(Buffer offsets, Column child, int length) throws ReadFailure {
    Buffer checked = Offsets.check32(offsets, length, child.length);
    return new Extents() {
      @Override
      public int start(int row) {
        return checked.int32(row);
      }

      @Override
      public int size(int row) {
        return checked.int32(row + 1) - checked.int32(row);
      }
    };
  }

  static Extents between64(Buffer offsets, Column child, int length) throws ReadFailure {
    Buffer checked = Offsets.check64(offsets, length, child.length);
    return new Extents() {
      @Override
      public int start(int row) {
        return (int) checked.int64(row);
      }

      @Override
      public int size(int row) {
        return (int) (checked.int64(row + 1) - checked.int64(row));
      }
    };
  }

  static Extents fixed(int size, Column child, int length) throws ReadFailure {
    if (size < 0 || (long) size * length > child.length) {
      throw ReadFailure.invalid("a fixed-size list has too few elements");
    }
    return new Extents() {
      @Override
      public int start(int row) {
        return row * size;
      }

      @Override
      public int size(int row) {
        return size;
      }
    };
  }

  /** The extents of a list view, whose rows are in any order. */
  static Extents views(Buffer offsets, Buffer sizes, boolean large, Column child, int length)
      throws ReadFailure {
    offsets.require(length, large ? 8 : 4);
    sizes.require(length, large ? 8 : 4);
    for (int row = 0; row < length; row++) {
      long start = large ? offsets.int64(row) : offsets.int32(row);
      long size = large ? sizes.int64(row) : sizes.int32(row);
      if (start < 0 || size < 0 || start > child.length || size > child.length - start) {
        throw ReadFailure.invalid("a list view leads outside of its elements");
      }
    }
    return new Extents() {
      @Override
      public int start(int row) {
        return large ? (int) offsets.int64(row) : offsets.int32(row);
      }

      @Override
      public int size(int row) {
        return large ? (int) sizes.int64(row) : sizes.int32(row);
      }
    };
  }

  static final class Lists extends Column {
    private final Extents extents;
    private final Column child;

    Lists(DataType type, int length, Buffer validity, int nulls, Extents extents, Column child) {
      super(type, length, validity, nulls);
      this.extents = extents;
      this.child = child;
    }

    @Override
    public ColumnarArray getArray(int row) {
      return isNullAt(row)
          ? null
          : new ColumnarArray(child, extents.start(row), extents.size(row));
    }

    @Override
    public ColumnVector getChild(int ordinal) {
      return child;
    }
  }

  static final class Maps extends Column {
    private final Extents extents;
    private final ColumnVector keys;
    private final ColumnVector values;

    Maps(DataType type, int length, Buffer validity, int nulls, Extents extents, Structs entries) {
      super(type, length, validity, nulls);
      this.extents = extents;
      keys = entries.getChild(0);
      values = entries.getChild(1);
    }

    @Override
    public ColumnarMap getMap(int row) {
      return isNullAt(row)
          ? null
          : new ColumnarMap(keys, values, extents.start(row), extents.size(row));
    }

    @Override
    public ColumnVector getChild(int ordinal) {
      return ordinal == 0 ? keys : values;
    }
  }

  /** Structs. A variant is a struct of its value and its metadata, in this order. */
  static final class Structs extends Column {
    private final Column[] children;

    Structs(DataType type, int length, Buffer validity, int nulls, Column[] children)
        throws ReadFailure {
      super(type, length, validity, nulls);
      this.children = children;
      for (Column child : children) {
        if (child.length < length) {
          throw ReadFailure.invalid("a field of a struct has fewer rows than the struct");
        }
      }
    }

    @Override
    public ColumnVector getChild(int ordinal) {
      return children[ordinal];
    }
  }
}
