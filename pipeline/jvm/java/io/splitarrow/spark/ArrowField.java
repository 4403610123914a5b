package io.splitarrow.spark;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.flatbuf.Decimal;
import org.apache.arrow.flatbuf.DictionaryEncoding;
import org.apache.arrow.flatbuf.Duration;
import org.apache.arrow.flatbuf.Endianness;
import org.apache.arrow.flatbuf.Field;
import org.apache.arrow.flatbuf.FixedSizeBinary;
import org.apache.arrow.flatbuf.FixedSizeList;
import org.apache.arrow.flatbuf.FloatingPoint;
import org.apache.arrow.flatbuf.Int;
import org.apache.arrow.flatbuf.Interval;
import org.apache.arrow.flatbuf.KeyValue;
import org.apache.arrow.flatbuf.Precision;
import org.apache.arrow.flatbuf.Schema;
import org.apache.arrow.flatbuf.Time;
import org.apache.arrow.flatbuf.TimeUnit;
import org.apache.arrow.flatbuf.Timestamp;
import org.apache.arrow.flatbuf.Type;
import org.apache.arrow.flatbuf.Union;
import org.apache.spark.sql.types.DataType;

/**
 * A field of an Arrow schema, as far as its values are concerned.
 *
 * @param typeId one of the constants of {@link Type}, or of those below
 * @param width the size of a value in bits or, for lists and binaries of fixed size, in elements
 * @param signed whether an integer is signed
 * @param unit the unit of a time as one of the constants of {@link TimeUnit}, or of a date or an
 *     interval; the mode of a union
 * @param extension the name of the extension type, or an empty string
 * @param dictionary the encoding of the values, or null
 */
record ArrowField(
    String name,
    byte typeId,
    int width,
    boolean signed,
    int unit,
    String extension,
    Encoding dictionary,
    List<ArrowField> children) {

  // The types that the Arrow of Spark 3.5 has no constants for.
  static final byte RUN_END_ENCODED = 22;
  static final byte BINARY_VIEW = 23;
  static final byte UTF8_VIEW = 24;
  static final byte LIST_VIEW = 25;
  static final byte LARGE_LIST_VIEW = 26;

  /** Returns whether a type of Spark is VARIANT, which Spark 3.5 does not have. */
  static boolean isVariant(DataType type) {
    return type.typeName().equals("variant");
  }

  /** A dictionary encoding: its identifier, and the integers that refer to the dictionary. */
  record Encoding(long id, int width, boolean signed) {}

  /** Returns this field without its dictionary encoding: the field of the dictionary's values. */
  ArrowField values() {
    return new ArrowField(name, typeId, width, signed, unit, extension, null, children);
  }

  /** Reads a schema. Every reference to a field counts, because FlatBuffers may share tables. */
  static List<ArrowField> readSchema(Schema schema) throws ReadFailure {
    if (schema.endianness() != Endianness.Little) {
      throw ReadFailure.invalid(
          "the data is big-endian, which only the Python source reads: set reader to python");
    }
    int[] count = {0};
    List<ArrowField> fields = new ArrayList<>();
    for (int index = 0; index < schema.fieldsLength(); index++) {
      fields.add(read(schema.fields(index), 1, count));
    }
    return fields;
  }

  private static ArrowField read(Field field, int depth, int[] count) throws ReadFailure {
    if (depth > Limits.NESTING || ++count[0] > Limits.FIELDS) {
      throw ReadFailure.invalid("the schema is nested too deeply, or has too many fields");
    }
    List<ArrowField> children = new ArrayList<>();
    for (int index = 0; index < field.childrenLength(); index++) {
      children.add(read(field.children(index), depth + 1, count));
    }
    String extension = "";
    for (int index = 0; index < field.customMetadataLength(); index++) {
      KeyValue pair = field.customMetadata(index);
      if ("ARROW:extension:name".equals(pair.key())) {
        extension = String.valueOf(pair.value());
      }
    }
    String name = field.name() == null ? "" : field.name();
    byte id = field.typeType();
    int width = width(field, id);
    boolean signed = id != Type.Int || ((Int) field.type(new Int())).isSigned();
    Encoding encoding = encoding(field.dictionary());
    return new ArrowField(
        name, id, width, signed, unit(field, id), extension, encoding, List.copyOf(children));
  }

  private static int width(Field field, byte id) {
    return switch (id) {
      case Type.Int -> ((Int) field.type(new Int())).bitWidth();
      case Type.FloatingPoint ->
          switch (((FloatingPoint) field.type(new FloatingPoint())).precision()) {
            case Precision.HALF -> 16;
            case Precision.SINGLE -> 32;
            default -> 64;
          };
      case Type.Decimal -> ((Decimal) field.type(new Decimal())).bitWidth();
      case Type.Time -> ((Time) field.type(new Time())).bitWidth();
      case Type.FixedSizeBinary ->
          ((FixedSizeBinary) field.type(new FixedSizeBinary())).byteWidth();
      case Type.FixedSizeList -> ((FixedSizeList) field.type(new FixedSizeList())).listSize();
      default -> 0;
    };
  }

  private static int unit(Field field, byte id) {
    return switch (id) {
      case Type.Date ->
          ((org.apache.arrow.flatbuf.Date) field.type(new org.apache.arrow.flatbuf.Date())).unit();
      case Type.Time -> ((Time) field.type(new Time())).unit();
      case Type.Timestamp -> ((Timestamp) field.type(new Timestamp())).unit();
      case Type.Duration -> ((Duration) field.type(new Duration())).unit();
      case Type.Interval -> ((Interval) field.type(new Interval())).unit();
      case Type.Union -> ((Union) field.type(new Union())).mode();
      default -> TimeUnit.SECOND;
    };
  }

  private static Encoding encoding(DictionaryEncoding dictionary) {
    if (dictionary == null) {
      return null;
    }
    Int index = dictionary.indexType();
    return index == null
        ? new Encoding(dictionary.id(), 32, true)
        : new Encoding(dictionary.id(), index.bitWidth(), index.isSigned());
  }

  /** Parses a FlatBuffer that a server sent. Whatever is wrong with it is invalid data. */
  static org.apache.arrow.flatbuf.Message message(ByteBuffer metadata) throws ReadFailure {
    try {
      return org.apache.arrow.flatbuf.Message.getRootAsMessage(metadata);
    } catch (RuntimeException error) {
      throw ReadFailure.invalid("a message cannot be decoded: " + error);
    }
  }
}
