package io.splitarrow.spark;

import io.splitarrow.spark.BytesColumns.Fixed;
import io.splitarrow.spark.BytesColumns.Large;
import io.splitarrow.spark.BytesColumns.Small;
import io.splitarrow.spark.BytesColumns.Views;
import io.splitarrow.spark.IndirectColumn.Segments;
import io.splitarrow.spark.NestedColumns.Extents;
import io.splitarrow.spark.NestedColumns.Lists;
import io.splitarrow.spark.NestedColumns.Maps;
import io.splitarrow.spark.NestedColumns.Structs;
import java.util.List;
import java.util.Map;
import org.apache.arrow.flatbuf.IntervalUnit;
import org.apache.arrow.flatbuf.Type;
import org.apache.arrow.flatbuf.UnionMode;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;

/** Decodes the columns of one record batch, in the order of the schema. */
final class ColumnDecoder {
  private final BatchBuffers buffers;
  private final Map<Long, Segments> dictionaries;

  ColumnDecoder(BatchBuffers buffers, Map<Long, Segments> dictionaries) {
    this.buffers = buffers;
    this.dictionaries = dictionaries;
  }

  /** The parts that every array has: its length, and which rows are null. */
  private record Header(int length, Buffer validity, int nulls) {}

  /**
   * Returns the next column.
   *
   * @param field the Arrow type of the column
   * @param type the Spark type that {@code pipeline/types.py} maps it to, or one whose values are
   *     stored in the same way
   */
  Column decode(ArrowField field, DataType type) throws ReadFailure {
    if (field.dictionary() != null) {
      return decodeDictionary(field, type);
    }
    if (SpatialColumn.isSpatial(type) && field.typeId() != ArrowField.RUN_END_ENCODED) {
      return new SpatialColumn(type, decode(field, DataTypes.BinaryType));
    }
    return switch (field.typeId()) {
      case Type.Null -> new NumberColumns.Nulls(type, buffers.nextNode().length());
      case ArrowField.RUN_END_ENCODED -> decodeRuns(field, type);
      case Type.List,
              Type.LargeList,
              Type.FixedSizeList,
              ArrowField.LIST_VIEW,
              ArrowField.LARGE_LIST_VIEW ->
          decodeList(field, type);
      case Type.Map -> decodeMap(field, (MapType) type);
      case Type.Struct_ -> decodeStruct(field, type);
      case Type.Utf8, Type.Binary -> {
        Header header = header();
        Buffer offsets = buffers.next();
        yield new Small(
            type, header.length, header.validity, header.nulls, offsets, buffers.next());
      }
      case Type.LargeUtf8, Type.LargeBinary -> {
        Header header = header();
        Buffer offsets = buffers.next();
        yield new Large(
            type, header.length, header.validity, header.nulls, offsets, buffers.next());
      }
      case ArrowField.UTF8_VIEW, ArrowField.BINARY_VIEW -> {
        Header header = header();
        Buffer views = buffers.next();
        Buffer[] data = buffers.nextVariadic();
        yield new Views(type, header.length, header.validity, header.nulls, views, data);
      }
      default -> decodeFixed(field, type, header());
    };
  }

  /** Passes a column over. */
  void skip(ArrowField field) throws ReadFailure {
    buffers.nextNode();
    if (field.dictionary() != null) {
      buffers.skip(2);
      return;
    }
    switch (field.typeId()) {
      case Type.Null, ArrowField.RUN_END_ENCODED -> {}
      case Type.Struct_, Type.FixedSizeList -> buffers.skip(1);
      case Type.Utf8, Type.Binary, Type.LargeUtf8, Type.LargeBinary -> buffers.skip(3);
      case ArrowField.LIST_VIEW, ArrowField.LARGE_LIST_VIEW -> buffers.skip(3);
      case ArrowField.UTF8_VIEW, ArrowField.BINARY_VIEW -> {
        buffers.skip(2);
        buffers.skip(buffers.nextVariadicCount());
      }
      case Type.Union -> buffers.skip(field.unit() == UnionMode.Dense ? 2 : 1);
      default -> buffers.skip(2);
    }
    for (ArrowField child : field.children()) {
      skip(child);
    }
  }

  private Header header() throws ReadFailure {
    BatchBuffers.Node node = buffers.nextNode();
    Buffer validity = buffers.next();
    if (node.nulls() > 0) {
      validity.requireBits(node.length());
    }
    return new Header(node.length(), validity, node.nulls());
  }

  private Column decodeFixed(ArrowField field, DataType type, Header header) throws ReadFailure {
    int length = header.length;
    Buffer valid = header.validity;
    int nulls = header.nulls;
    Buffer values = buffers.next();
    return switch (field.typeId()) {
      case Type.Bool -> new NumberColumns.Booleans(type, length, valid, nulls, values, false);
      case Type.Int -> decodeInt(field, type, header, values);
      case Type.FloatingPoint ->
          field.width() == 64
              ? new NumberColumns.Doubles(type, length, valid, nulls, values)
              : new NumberColumns.Floats(type, length, valid, nulls, values, field.width() == 16);
      case Type.Decimal ->
          new NumberColumns.Decimals(type, length, valid, nulls, values, field.width() / 8);
      case Type.Date ->
          field.unit() == org.apache.arrow.flatbuf.DateUnit.DAY
              ? new NumberColumns.Ints(type, length, valid, nulls, values)
              : new NumberColumns.Days(type, length, valid, nulls, values);
      case Type.Time -> {
        long factor = POWERS[3 - field.unit()];
        if (field.width() == 32) {
          yield new NumberColumns.WidenedInts(type, length, valid, nulls, values, false, factor);
        }
        yield scaled(type, header, values, factor, 1);
      }
      case Type.Timestamp, Type.Duration ->
          field.unit() == org.apache.arrow.flatbuf.TimeUnit.NANOSECOND
              ? scaled(type, header, values, 1, 1000)
              : scaled(type, header, values, POWERS[2 - field.unit()], 1);
      case Type.Interval -> {
        if (field.unit() != IntervalUnit.MONTH_DAY_NANO) {
          throw unsupported(field, type);
        }
        yield new NumberColumns.Intervals(type, length, valid, nulls, values);
      }
      case Type.FixedSizeBinary -> new Fixed(type, length, valid, nulls, values, field.width());
      default -> throw unsupported(field, type);
    };
  }

  private static final long[] POWERS = {1, 1000, 1_000_000, 1_000_000_000};

  private static Column scaled(
      DataType type, Header header, Buffer values, long factor, long divisor) throws ReadFailure {
    if (factor == 1 && divisor == 1) {
      return new NumberColumns.Longs(type, header.length, header.validity, header.nulls, values);
    }
    return new NumberColumns.ScaledLongs(
        type, header.length, header.validity, header.nulls, values, factor, divisor);
  }

  private static Column decodeInt(ArrowField field, DataType type, Header header, Buffer values)
      throws ReadFailure {
    int length = header.length;
    Buffer valid = header.validity;
    int nulls = header.nulls;
    boolean signed = field.signed();
    if (type.equals(DataTypes.BooleanType)) {
      return new NumberColumns.Booleans(type, length, valid, nulls, values, true);
    }
    return switch (field.width()) {
      case 8 ->
          signed
              ? new NumberColumns.Bytes(type, length, valid, nulls, values)
              : new NumberColumns.Shorts(type, length, valid, nulls, values, true);
      case 16 ->
          signed
              ? new NumberColumns.Shorts(type, length, valid, nulls, values, false)
              : new NumberColumns.UnsignedShorts(type, length, valid, nulls, values);
      case 32 ->
          signed
              ? new NumberColumns.Ints(type, length, valid, nulls, values)
              : new NumberColumns.WidenedInts(type, length, valid, nulls, values, true, 1);
      case 64 ->
          signed
              ? new NumberColumns.Longs(type, length, valid, nulls, values)
              : new NumberColumns.Decimals(type, length, valid, nulls, values, -8);
      default -> throw unsupported(field, type);
    };
  }

  private Column decodeList(ArrowField field, DataType type) throws ReadFailure {
    Header header = header();
    byte id = field.typeId();
    boolean large = id == Type.LargeList || id == ArrowField.LARGE_LIST_VIEW;
    boolean view = id == ArrowField.LIST_VIEW || id == ArrowField.LARGE_LIST_VIEW;
    boolean fixed = id == Type.FixedSizeList;
    Buffer offsets = fixed ? Buffer.EMPTY : buffers.next();
    Buffer sizes = view ? buffers.next() : Buffer.EMPTY;
    Column child = decode(child(field, 0), ((ArrayType) type).elementType());
    Extents extents;
    if (fixed) {
      extents = NestedColumns.fixed(field.width(), child, header.length);
    } else if (view) {
      extents = NestedColumns.views(offsets, sizes, large, child, header.length);
    } else if (large) {
      extents = NestedColumns.between64(offsets, child, header.length);
    } else {
      extents = NestedColumns.between32(offsets, child, header.length);
    }
    return new Lists(type, header.length, header.validity, header.nulls, extents, child);
  }

  private Column decodeMap(ArrowField field, MapType type) throws ReadFailure {
    Header header = header();
    Buffer offsets = buffers.next();
    StructType entries =
        new StructType().add("key", type.keyType()).add("value", type.valueType());
    ArrowField pairs = child(field, 0);
    if (pairs.typeId() != Type.Struct_ || pairs.dictionary() != null) {
      throw unsupported(field, type);
    }
    Structs child = (Structs) decodeChildren(pairs, entries, entries.fields(), false);
    Extents extents = NestedColumns.between32(offsets, child, header.length);
    return new Maps(type, header.length, header.validity, header.nulls, extents, child);
  }

  private Column decodeStruct(ArrowField field, DataType type) throws ReadFailure {
    if (ArrowField.isVariant(type)) {
      StructType parts =
          new StructType().add("value", DataTypes.BinaryType).add("metadata", DataTypes.BinaryType);
      return decodeChildren(field, type, parts.fields(), true);
    }
    return decodeChildren(field, type, ((StructType) type).fields(), true);
  }

  /**
   * Decodes the fields of a struct, and returns them in the order of Spark's type.
   *
   * <p>A query may need some of the fields only. Those of variants and maps must be complete.
   */
  private Column decodeChildren(
      ArrowField field, DataType type, StructField[] wanted, boolean byName) throws ReadFailure {
    Header header = header();
    List<ArrowField> children = field.children();
    boolean isPrunable = byName && type instanceof StructType;
    if (isPrunable ? children.size() < wanted.length : children.size() != wanted.length) {
      throw unsupported(field, type);
    }
    Column[] columns = new Column[wanted.length];
    for (int index = 0; index < children.size(); index++) {
      int target = byName ? find(wanted, children.get(index).name()) : index;
      if (target < 0 && isPrunable) {
        skip(children.get(index));
        continue;
      }
      if (target < 0 || columns[target] != null) {
        throw unsupported(field, type);
      }
      columns[target] = decode(children.get(index), wanted[target].dataType());
    }
    for (Column column : columns) {
      if (column == null) {
        throw unsupported(field, type);
      }
    }
    return new Structs(type, header.length, header.validity, header.nulls, columns);
  }

  private static int find(StructField[] fields, String name) {
    for (int index = 0; index < fields.length; index++) {
      if (fields[index].name().equals(name)) {
        return index;
      }
    }
    return -1;
  }

  private Column decodeDictionary(ArrowField field, DataType type) throws ReadFailure {
    Header header = header();
    ArrowField.Encoding encoding = field.dictionary();
    int length = header.length;
    Buffer indices = buffers.next().require(length, encoding.width() / 8);
    Segments found = dictionaries.get(encoding.id());
    Segments values = found == null ? new Segments(new ColumnVector[0], new int[0]) : found;
    NumberColumns.Bytes nulls =
        new NumberColumns.Bytes(type, 0, header.validity, header.nulls, Buffer.EMPTY);
    IndirectColumn.Rows rows =
        switch (encoding.width()) {
          case 8 -> row -> nulls.isNullAt(row) ? -1 : indices.int8(row) & mask(encoding, 0xff);
          case 16 -> row -> nulls.isNullAt(row) ? -1 : indices.int16(row) & mask(encoding, 0xffff);
          case 32 -> row -> nulls.isNullAt(row) ? -1 : indices.int32(row);
          case 64 -> row -> nulls.isNullAt(row) ? -1 : (int) indices.int64(row);
          default -> throw unsupported(field, type);
        };
    int limit = values.length();
    for (int row = 0; row < length; row++) {
      if (!nulls.isNullAt(row)) {
        int target = rows.of(row);
        boolean wide = encoding.width() == 64 && indices.int64(row) != target;
        if (wide || target < 0 || target >= limit) {
          throw ReadFailure.invalid(
              found == null
                  ? "a value refers to a dictionary that has not arrived"
                  : "a value refers to entry " + target + " of a dictionary of " + limit);
        }
      }
    }
    return new IndirectColumn(type, length, rows, values);
  }

  private static int mask(ArrowField.Encoding encoding, int unsigned) {
    return encoding.signed() ? -1 : unsigned;
  }

  private Column decodeRuns(ArrowField field, DataType type) throws ReadFailure {
    int length = buffers.nextNode().length();
    ArrowField endsField = child(field, 0);
    Header header = header();
    Buffer ends = buffers.next();
    int width = endsField.width() / 8;
    int runs = header.length;
    if (endsField.typeId() != Type.Int || width < 2 || header.nulls != 0) {
      throw unsupported(field, type);
    }
    ends.require(runs, width);
    Column values = decode(child(field, 1), type);
    int[] limits = new int[runs];
    long previous = 0;
    for (int run = 0; run < runs; run++) {
      long end = width == 2 ? ends.int16(run) : width == 4 ? ends.int32(run) : ends.int64(run);
      if (end <= previous) {
        throw ReadFailure.invalid("the ends of the runs of an array do not increase");
      }
      previous = end;
      limits[run] = (int) Math.min(end, Integer.MAX_VALUE);
    }
    if (previous < length || values.length < runs) {
      throw ReadFailure.invalid("the runs of an array end before its rows");
    }
    Segments segments = new Segments(new ColumnVector[] {values}, new int[] {values.length});
    return new IndirectColumn(type, length, row -> findRun(limits, row), segments);
  }

  private static int findRun(int[] ends, int row) {
    int found = java.util.Arrays.binarySearch(ends, row + 1);
    return found >= 0 ? found : -found - 1;
  }

  private static ArrowField child(ArrowField field, int index) throws ReadFailure {
    if (index >= field.children().size()) {
      throw ReadFailure.invalid("the schema lacks a child of the column '" + field.name() + "'");
    }
    return field.children().get(index);
  }

  private static ReadFailure unsupported(ArrowField field, DataType type) {
    return ReadFailure.invalid(
        "the column '"
            + field.name()
            + "' does not have the Arrow type that was described, for "
            + type.simpleString());
  }
}
