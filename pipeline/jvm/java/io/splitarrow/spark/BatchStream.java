package io.splitarrow.spark;

import io.splitarrow.spark.IndirectColumn.Segments;
import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.arrow.flatbuf.DictionaryBatch;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.flatbuf.RecordBatch;
import org.apache.arrow.flatbuf.Schema;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;

/** The record batches of one stream as columns of Spark. A batch is valid until the next one. */
final class BatchStream implements Closeable {
  private final Messages messages;
  private final Memory memory;
  private final StructType wanted;
  private final Map<Long, ArrowField> dictionaryFields = new HashMap<>();
  private final Map<Long, DataType> dictionaryTypes = new HashMap<>();
  private final Map<Long, Segments> dictionaries = new HashMap<>();
  private final Map<Long, List<ArrowBuf>> dictionaryMemory = new HashMap<>();
  private final Set<Long> unusedDictionaries = new HashSet<>();
  private final List<ArrowBuf> retired = new ArrayList<>();
  private final List<ArrowBuf> owned = new ArrayList<>();
  private ArrowBuf body;
  private List<ArrowField> fields;
  private int[] targets;

  /** The columns of the current batch, in the order of the wanted schema. */
  Column[] columns;

  /** The number of rows of the current batch. */
  int rows;

  /** The bytes of mapped files that the columns so far consist of. */
  long mapped;

  BatchStream(Messages messages, StructType wanted, Memory memory) {
    this.messages = messages;
    this.wanted = wanted;
    this.memory = memory;
  }

  long received() {
    return messages.received();
  }

  /** Reads the next record batch; returns whether there is one. */
  boolean next() throws IOException {
    release();
    try {
      return read();
    } catch (IndexOutOfBoundsException | ClassCastException | NullPointerException error) {
      throw ReadFailure.invalid("a message is malformed: " + error);
    } catch (StackOverflowError error) {
      throw ReadFailure.invalid("a message is nested too deeply");
    }
  }

  private boolean read() throws IOException {
    while (true) {
      Messages.Part part = messages.next();
      if (part == null) {
        return false;
      }
      Message message = part.message();
      switch (message.headerType()) {
        case MessageHeader.Schema -> readSchema((Schema) message.header(new Schema()));
        case MessageHeader.DictionaryBatch ->
            readDictionary((DictionaryBatch) message.header(new DictionaryBatch()), part);
        default -> {
          body = part.owned();
          readBatch((RecordBatch) message.header(new RecordBatch()), part);
          return true;
        }
      }
    }
  }

  private void readSchema(Schema schema) throws ReadFailure {
    fields = ArrowField.readSchema(schema);
    targets = new int[fields.size()];
    boolean[] found = new boolean[wanted.length()];
    int count = 0;
    for (int index = 0; index < targets.length; index++) {
      targets[index] = find(fields.get(index).name());
      if (targets[index] < 0 && messages.hasAllColumns()) {
        continue;
      }
      if (targets[index] < 0 || found[targets[index]]) {
        throw ReadFailure.invalid(
            "the server sent a column '" + fields.get(index).name() + "' that was not requested");
      }
      found[targets[index]] = true;
      count++;
      collectDictionaries(fields.get(index), wanted.fields()[targets[index]].dataType(), false);
    }
    if (count != wanted.length()) {
      throw ReadFailure.invalid("the server sent fewer columns than were requested");
    }
  }

  private int find(String name) {
    StructField[] names = wanted.fields();
    for (int index = 0; index < names.length; index++) {
      if (names[index].name().equals(name)) {
        return index;
      }
    }
    return -1;
  }

  /** Notes the dictionaries of a field; {@code isPair} if it is a key of a map with its value. */
  private void collectDictionaries(ArrowField field, DataType type, boolean isPair)
      throws ReadFailure {
    if (field.dictionary() != null) {
      long id = field.dictionary().id();
      DataType known = dictionaryTypes.putIfAbsent(id, type);
      if (known != null && !known.equals(type)) {
        throw ReadFailure.invalid("two columns of different types share a dictionary");
      }
      dictionaryFields.putIfAbsent(id, field.values());
    }
    List<ArrowField> children = field.children();
    for (int index = 0; index < children.size(); index++) {
      ArrowField child = children.get(index);
      DataType childType = childType(type, child, index, isPair);
      if (childType != null) {
        collectDictionaries(child, childType, type instanceof MapType);
      } else {
        collectUnused(child);
      }
    }
  }

  /** Notes the dictionaries of a field of a struct that the query does not need. */
  private void collectUnused(ArrowField field) {
    if (field.dictionary() != null) {
      unusedDictionaries.add(field.dictionary().id());
    }
    field.children().forEach(this::collectUnused);
  }

  /** Returns the Spark type of a child; null if the query needs no value of its own of it. */
  private static DataType childType(
      DataType type, ArrowField child, int index, boolean isPair) {
    if (type instanceof ArrayType array) {
      return array.elementType();
    }
    if (type instanceof MapType map) {
      return new StructType().add("key", map.keyType()).add("value", map.valueType());
    }
    if (type instanceof StructType struct) {
      if (isPair && index < 2) {
        return struct.fields()[index].dataType();
      }
      return Arrays.asList(struct.fieldNames()).contains(child.name())
          ? struct.apply(child.name()).dataType()
          : null;
    }
    if (ArrowField.isVariant(type)) {
      return org.apache.spark.sql.types.DataTypes.BinaryType;
    }
    return index == 1 ? type : null; // the values of runs
  }

  private void readDictionary(DictionaryBatch dictionary, Messages.Part part)
      throws ReadFailure {
    long id = dictionary.id();
    List<ArrowBuf> kept = new ArrayList<>();
    if (part.owned() != null) {
      kept.add(part.owned());
    }
    try {
      ArrowField field = dictionaryFields.get(id);
      if (field == null && (messages.hasAllColumns() || unusedDictionaries.contains(id))) {
        return; // of a column that was not requested
      }
      if (field == null) {
        throw ReadFailure.invalid("the schema has no dictionary " + id);
      }
      BatchBuffers buffers =
          new BatchBuffers(
              dictionary.data(), ViewCounts.of(part.message()), part.body(), memory, kept);
      Column values =
          new ColumnDecoder(buffers, dictionaries).decode(field, dictionaryTypes.get(id));
      buffers.requireEnd();
      Segments known = dictionaries.get(id);
      if (dictionary.isDelta() && known != null) {
        dictionaries.put(id, append(known, values));
        dictionaryMemory.get(id).addAll(kept);
      } else {
        dictionaries.put(
            id, new Segments(new ColumnVector[] {values}, new int[] {values.length}));
        List<ArrowBuf> replaced = dictionaryMemory.put(id, new ArrayList<>(kept));
        if (replaced != null && dictionaryFields.values().stream().anyMatch(BatchStream::refers)) {
          retired.addAll(replaced); // the values of another dictionary may refer to it
        } else if (replaced != null) {
          replaced.forEach(ArrowBuf::close);
        }
      }
      kept.clear();
    } finally {
      kept.forEach(ArrowBuf::close);
    }
  }

  private static boolean refers(ArrowField field) {
    return field.dictionary() != null || field.children().stream().anyMatch(BatchStream::refers);
  }

  private static Segments append(Segments known, Column values) throws ReadFailure {
    long length = (long) known.length() + values.length;
    if (length > Integer.MAX_VALUE) {
      throw ReadFailure.invalid("a dictionary has " + length + " entries");
    }
    int count = known.columns().length;
    ColumnVector[] columns = Arrays.copyOf(known.columns(), count + 1);
    int[] ends = Arrays.copyOf(known.ends(), count + 1);
    columns[count] = values;
    ends[count] = (int) length;
    return new Segments(columns, ends);
  }

  private void readBatch(RecordBatch batch, Messages.Part part) throws ReadFailure {
    if (batch.length() < 0 || batch.length() > Integer.MAX_VALUE - 8) {
      throw ReadFailure.invalid("the record batch has " + batch.length() + " rows");
    }
    rows = (int) batch.length();
    BatchBuffers buffers =
        new BatchBuffers(batch, ViewCounts.of(part.message()), part.body(), memory, owned);
    ColumnDecoder decoder = new ColumnDecoder(buffers, dictionaries);
    columns = new Column[targets.length];
    for (int index = 0; index < targets.length; index++) {
      int target = targets[index];
      if (target < 0) {
        decoder.skip(fields.get(index));
        continue;
      }
      columns[target] = decoder.decode(fields.get(index), wanted.fields()[target].dataType());
      if (columns[target].length != rows) {
        throw ReadFailure.invalid("a column has another number of rows than its record batch");
      }
    }
    buffers.requireEnd();
    mapped += messages.hasAllColumns() ? buffers.used() : 0;
  }

  private void release() {
    columns = null;
    owned.forEach(ArrowBuf::close);
    owned.clear();
    messages.recycle(body);
    body = null;
  }

  @Override
  public void close() throws IOException {
    release();
    dictionaryMemory.values().forEach(buffers -> buffers.forEach(ArrowBuf::close));
    dictionaryMemory.clear();
    retired.forEach(ArrowBuf::close);
    retired.clear();
    messages.close();
  }
}
