package io.splitarrow.spark;

import com.google.flatbuffers.Table;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;

/**
 * The numbers of data buffers of the view arrays of a record batch.
 *
 * <p>The Arrow of Spark 3.5 has no accessor of this field, {@code variadicBufferCounts}.
 */
final class ViewCounts extends Table {
  private static final int DICTIONARY_DATA = 6;
  private static final int VARIADIC_BUFFER_COUNTS = 12;

  private ViewCounts() {}

  /** Returns the numbers of a message whose header is a record batch or a dictionary batch. */
  static ViewCounts of(Message message) {
    ViewCounts batch = new ViewCounts();
    message.header(batch);
    if (message.headerType() == MessageHeader.DictionaryBatch) {
      batch.__reset(
          batch.__indirect(batch.bb_pos + batch.__offset(DICTIONARY_DATA)), batch.bb);
    }
    return batch;
  }

  int length() {
    int offset = __offset(VARIADIC_BUFFER_COUNTS);
    return offset == 0 ? 0 : __vector_len(offset);
  }

  long get(int index) {
    return bb.getLong(__vector(__offset(VARIADIC_BUFFER_COUNTS)) + index * Long.BYTES);
  }
}
