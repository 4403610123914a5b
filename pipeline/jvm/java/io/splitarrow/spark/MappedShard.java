package io.splitarrow.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.flatbuf.Block;
import org.apache.arrow.flatbuf.Footer;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.util.MemoryUtil;

/**
 * The messages of an Arrow IPC file in mapped memory.
 *
 * <p>The maps stay until the garbage collector finds that nothing refers to them, so that a row
 * that Spark looks at too late leads to no unmapped page.
 */
final class MappedShard implements Messages {
  private static final byte[] MAGIC = {'A', 'R', 'R', 'O', 'W', '1'};
  private static final int TAIL = Integer.BYTES + MAGIC.length;
  private static final int HEAD = 8;
  private static final int CONTINUATION = -1;
  private static final int PREFIX = 8;
  private static final long WINDOW = 1L << 30;

  /** A part of the file in memory. */
  private record Window(long start, MappedByteBuffer memory) {
    boolean contains(long offset, long length) {
      return offset >= start && length <= memory.limit() - (offset - start);
    }
  }

  private final LocalFile file;
  private final FileChannel channel;
  private final List<Window> windows = new ArrayList<>();
  private final Footer footer;
  private final long footerStart;
  private int next;

  /** Opens and checks a file. */
  MappedShard(LocalFile file) throws IOException {
    this.file = file;
    channel = FileChannel.open(Path.of(file.path()), StandardOpenOption.READ);
    try {
      long size = channel.size();
      if (size != file.bytes()) {
        throw invalid("it has " + size + " bytes, not " + file.bytes() + " as in the manifest");
      }
      if (size < HEAD + TAIL) {
        throw invalid("it is too short");
      }
      ByteBuffer tail = read(size - TAIL, TAIL);
      int length = tail.getInt();
      byte[] magic = new byte[MAGIC.length];
      tail.get(magic);
      boolean fits = length > 0 && length <= Limits.METADATA_BYTES && length <= size - HEAD - TAIL;
      if (!fits || !java.util.Arrays.equals(magic, MAGIC)) {
        throw invalid("it is not an Arrow file");
      }
      footerStart = size - TAIL - length;
      footer = Footer.getRootAsFooter(read(footerStart, length));
    } catch (IOException | RuntimeException error) {
      channel.close();
      throw error instanceof IOException failure ? failure : invalid("its footer is malformed");
    }
  }

  private ByteBuffer read(long offset, int length) throws IOException {
    ByteBuffer bytes = ByteBuffer.allocate(length).order(ByteOrder.LITTLE_ENDIAN);
    while (bytes.hasRemaining()) {
      if (channel.read(bytes, offset + bytes.position()) < 0) {
        throw invalid("it was truncated");
      }
    }
    return bytes.flip();
  }

  @Override
  public Part next() throws IOException {
    int index = next++;
    if (index == 0) {
      return schema();
    }
    int dictionaries = footer.dictionariesLength();
    if (index <= dictionaries) {
      return message(footer.dictionaries(index - 1), MessageHeader.DictionaryBatch);
    }
    index -= dictionaries;
    return index <= footer.recordBatchesLength()
        ? message(footer.recordBatches(index - 1), MessageHeader.RecordBatch)
        : null;
  }

  private Part schema() throws IOException {
    int length = read(HEAD, PREFIX).getInt(Integer.BYTES);
    if (length < 0 || length > footerStart - HEAD - PREFIX) {
      throw invalid("its schema is malformed");
    }
    return message(HEAD, PREFIX + length, 0, MessageHeader.Schema);
  }

  private Part message(Block block, byte header) throws IOException {
    return message(block.offset(), block.metaDataLength(), block.bodyLength(), header);
  }

  private Part message(long offset, long metadata, long body, byte header) throws IOException {
    boolean inside =
        offset >= HEAD
            && metadata > PREFIX
            && metadata <= Limits.METADATA_BYTES
            && body >= 0
            && offset <= footerStart - metadata
            && body <= footerStart - metadata - offset;
    if (!inside) {
      throw invalid("a block leads outside of it");
    }
    ByteBuffer memory = map(offset, metadata + body);
    // A file from before version 0.15 of Arrow lacks the marker.
    int prefix = memory.getInt(0) == CONTINUATION ? PREFIX : Integer.BYTES;
    ByteBuffer bytes = memory.slice(prefix, (int) metadata - prefix);
    Message message = ArrowField.message(bytes.order(ByteOrder.LITTLE_ENDIAN));
    if (message.headerType() != header || message.bodyLength() != body) {
      throw invalid("a message is not the one that its footer lists");
    }
    long address = MemoryUtil.getByteBufferAddress(memory) + metadata;
    return new Part(message, null, new Buffer(address, body));
  }

  /** Returns a part of the file in mapped memory, which stays mapped as long as this object. */
  private ByteBuffer map(long offset, long length) throws IOException {
    Window window = windows.isEmpty() ? null : windows.get(windows.size() - 1);
    if (window == null || !window.contains(offset, length)) {
      long size = Math.min(Math.max(length, WINDOW), file.bytes() - offset);
      if (length > Integer.MAX_VALUE) {
        throw invalid("a record batch has " + length + " bytes");
      }
      window = new Window(offset, channel.map(FileChannel.MapMode.READ_ONLY, offset, size));
      windows.add(window);
    }
    ByteBuffer part = window.memory.slice((int) (offset - window.start), (int) length);
    return part.order(ByteOrder.LITTLE_ENDIAN);
  }

  @Override
  public void recycle(ArrowBuf owned) {}

  @Override
  public long received() {
    return 0;
  }

  @Override
  public boolean hasAllColumns() {
    return true;
  }

  private ReadFailure invalid(String problem) {
    return ReadFailure.invalid(file.path() + ": " + problem);
  }

  @Override
  public void close() throws IOException {
    channel.close();
  }
}
