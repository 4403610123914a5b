package io.splitarrow.spark;

import com.github.luben.zstd.Zstd;
import java.io.IOException;
import java.io.InputStream;
import java.util.List;
import net.jpountz.lz4.LZ4FrameInputStream;
import org.apache.arrow.flatbuf.BodyCompression;
import org.apache.arrow.flatbuf.CompressionType;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.spark.unsafe.Platform;

/** Decompression of the buffers of a record batch: LZ4 frames and ZSTD. */
final class Compression {
  private static final int PREFIX = 8;
  private static final int CHUNK = 64 << 10;

  private Compression() {}

  /** Returns a buffer decompressed, in memory that is added to what the caller closes. */
  static Buffer decompress(
      BodyCompression compression, Buffer source, Memory memory, List<ArrowBuf> owned)
      throws ReadFailure {
    long size = declared(source);
    if (source.length() == 0) {
      return source;
    }
    Buffer payload = new Buffer(source.address() + PREFIX, source.length() - PREFIX);
    if (size < 0) {
      return payload;
    }
    ArrowBuf target = memory.allocate(size);
    owned.add(target);
    Buffer result = new Buffer(target.memoryAddress(), size);
    if (compression.codec() == CompressionType.ZSTD) {
      zstd(payload, result);
    } else if (compression.codec() == CompressionType.LZ4_FRAME) {
      lz4(payload, result);
    } else {
      throw ReadFailure.invalid("unknown compression " + compression.codec());
    }
    return result;
  }

  /** Returns the declared size of a buffer, or -1 if it is not compressed. */
  private static long declared(Buffer buffer) throws ReadFailure {
    if (buffer.length() == 0) {
      return -1;
    }
    long size = buffer.require(PREFIX, 1).int64(0);
    if (size < -1) {
      throw ReadFailure.invalid("a compressed buffer declares " + size + " bytes");
    }
    return size;
  }

  private static void zstd(Buffer source, Buffer target) throws ReadFailure {
    long size =
        Zstd.decompressUnsafe(
            target.address(), target.length(), source.address(), source.length());
    if (size != target.length()) {
      throw ReadFailure.invalid("a buffer does not decompress to its declared size");
    }
  }

  private static void lz4(Buffer source, Buffer target) throws ReadFailure {
    byte[] chunk = new byte[(int) Math.min(CHUNK, Math.max(1, target.length()))];
    long written = 0;
    try (InputStream frames = new LZ4FrameInputStream(new MemoryStream(source))) {
      for (int size = frames.read(chunk); size >= 0; size = frames.read(chunk)) {
        if (size > target.length() - written) {
          throw ReadFailure.invalid("a buffer decompresses to more than its declared size");
        }
        Platform.copyMemory(
            chunk, Platform.BYTE_ARRAY_OFFSET, null, target.address() + written, size);
        written += size;
      }
    } catch (ReadFailure failure) {
      throw failure;
    } catch (IOException | RuntimeException error) {
      throw ReadFailure.invalid("a buffer cannot be decompressed: " + error.getMessage());
    }
    if (written != target.length()) {
      throw ReadFailure.invalid("a buffer does not decompress to its declared size");
    }
  }

  /** Reads memory as a stream. */
  private static final class MemoryStream extends InputStream {
    private final Buffer buffer;
    private long at;

    MemoryStream(Buffer buffer) {
      this.buffer = buffer;
    }

    @Override
    public int read() {
      return at < buffer.length() ? buffer.int8(at++) & 0xff : -1;
    }

    @Override
    public int read(byte[] target, int offset, int length) {
      int size = (int) Math.min(length, buffer.length() - at);
      if (size <= 0) {
        return length == 0 ? 0 : -1;
      }
      Platform.copyMemory(
          null, buffer.address() + at, target, Platform.BYTE_ARRAY_OFFSET + offset, size);
      at += size;
      return size;
    }
  }
}
