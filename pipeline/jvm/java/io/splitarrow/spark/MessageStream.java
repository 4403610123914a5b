package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.HashMap;
import java.util.Map;
import org.apache.arrow.flatbuf.Message;
import org.apache.arrow.flatbuf.MessageHeader;
import org.apache.arrow.memory.ArrowBuf;

/**
 * One stream of Arrow messages in the order of their sequence numbers, to its proven end.
 *
 * <p>Metadata and bodies may arrive in any order and more than once; see docs/wire.md.
 */
final class MessageStream implements Messages {
  private static final int END = 0;
  private static final int ARROW = 1;
  private static final int FAILURE = 2;
  private static final int FAILURE_BODY = 255;
  private static final long RESERVED = 0x00ffffff00000000L;

  /** A message whose metadata or body may still be missing. */
  private static final class Pending {
    Message message;
    byte[] metadata;
    ArrowBuf body;
    long bodyLength = -1;

    boolean isComplete() {
      return message != null && (!hasBody() || bodyLength >= 0);
    }

    boolean hasBody() {
      return message.headerType() != MessageHeader.Schema;
    }

    Part part() {
      Buffer memory =
          body == null ? Buffer.EMPTY : new Buffer(body.memoryAddress(), bodyLength);
      return new Part(message, body, memory);
    }
  }

  private final Connections connections;
  private final Connection connection;
  private final long earlier;
  private final Memory memory;
  private final Address address;
  private final Map<Integer, Pending> pending = new HashMap<>();
  private ArrowBuf spare;
  private int next;
  private int repeated;
  private Integer end;

  MessageStream(Address address, byte[] ticket, Connections connections, Memory memory)
      throws IOException {
    this.address = address;
    this.memory = memory;
    this.connections = connections;
    connection = connections.open(address);
    earlier = connection.received;
    try {
      connection.request(address, ticket);
    } catch (IOException error) {
      connection.close();
      throw error;
    }
  }

  @Override
  public long received() {
    return connection.received - earlier;
  }

  @Override
  public boolean hasAllColumns() {
    return false;
  }

  @Override
  public Part next() throws IOException {
    while (true) {
      Pending part = pending.get(next);
      if (part != null && part.isComplete()) {
        pending.remove(next);
        check(part);
        next++;
        return part.part();
      }
      if (hasEnded()) {
        return null;
      }
      connection.nextFrame();
      if (connection.tagged) {
        receiveTagged();
      } else {
        receiveMetadata();
      }
    }
  }

  private boolean hasEnded() {
    return end != null && end == next && pending.isEmpty();
  }

  private void check(Pending part) throws ReadFailure {
    boolean isSchema = !part.hasBody();
    if (isSchema != (next == 0)) {
      throw invalid("only the first message is a schema");
    }
    if (part.hasBody() ? part.message.bodyLength() != part.bodyLength : part.bodyLength >= 0) {
      throw invalid(
          "the body has " + part.bodyLength + " bytes, not " + part.message.bodyLength());
    }
  }

  private void receiveMetadata() throws IOException {
    byte[] payload = receivePayload(Limits.METADATA_BYTES, 5);
    ByteBuffer view = ByteBuffer.wrap(payload).order(ByteOrder.LITTLE_ENDIAN);
    int type = view.get();
    int sequence = view.getInt();
    switch (type) {
      case END -> receiveEnd(payload.length, sequence);
      case ARROW -> receiveArrow(payload, sequence);
      case FAILURE -> throw failure(payload, 5);
      default -> throw invalid("unknown type " + type + " of a metadata message");
    }
  }

  private void receiveEnd(int length, int sequence) throws ReadFailure {
    if (length != 5 || (end != null && end != sequence) || sequence - next < 0) {
      throw invalid("the end of the stream counts " + sequence + " messages");
    }
    for (int seen : pending.keySet()) {
      if (seen - sequence >= 0) {
        throw invalid("the end of the stream precedes message " + seen);
      }
    }
    countRepeated(end != null);
    end = sequence;
  }

  private void receiveArrow(byte[] payload, int sequence) throws ReadFailure {
    Pending part = expect(sequence);
    if (part == null) {
      return;
    }
    byte[] metadata = java.util.Arrays.copyOfRange(payload, 5, payload.length);
    if (part.message != null) {
      if (!java.util.Arrays.equals(part.metadata, metadata)) {
        throw invalid("two messages with the sequence number " + sequence + " differ");
      }
      countRepeated(true);
      return;
    }
    countRepeated(false);
    part.metadata = metadata;
    part.message =
        ArrowField.message(ByteBuffer.wrap(metadata).order(ByteOrder.LITTLE_ENDIAN));
    byte header = part.message.headerType();
    boolean known =
        header == MessageHeader.Schema
            || header == MessageHeader.RecordBatch
            || header == MessageHeader.DictionaryBatch;
    if (!known) {
      throw invalid("a message is neither a schema nor a batch");
    }
  }

  private void receiveTagged() throws IOException {
    long tag = connection.tag;
    if (address.keepAlive() != null && tag == address.keepAlive() && connection.length == 0) {
      countRepeated(true);
      return;
    }
    int type = (int) (tag >>> 56);
    if ((tag & RESERVED) != 0 || (type != 0 && type != FAILURE_BODY)) {
      throw invalid("a body has the tag 0x" + Long.toHexString(tag));
    }
    if (type == FAILURE_BODY) {
      throw failure(receivePayload(Limits.FAILURE_BYTES, 0), 0);
    }
    int sequence = (int) tag;
    Pending part = expect(sequence);
    if (part == null || part.bodyLength >= 0) {
      if (part != null && part.bodyLength != connection.length) {
        throw invalid("two bodies with the sequence number " + sequence + " differ in size");
      }
      countRepeated(true);
      skip(connection.length);
      return;
    }
    countRepeated(false);
    if (part.message != null && part.message.bodyLength() != connection.length) {
      throw invalid(
          "the body has " + connection.length + " bytes, not " + part.message.bodyLength());
    }
    receiveBody(part);
  }

  private void receiveBody(Pending part) throws IOException {
    long length = connection.length;
    part.body = allocate(length);
    long at = 0;
    while (at < length) {
      int size = (int) Math.min(length - at, 1 << 30);
      connection.receive(part.body.nioBuffer(at, size));
      at += size;
    }
    part.bodyLength = length;
  }

  private ArrowBuf allocate(long length) throws ReadFailure {
    ArrowBuf buffer = spare;
    spare = null;
    if (buffer != null && buffer.capacity() >= length && buffer.capacity() / 4 <= length) {
      return buffer;
    }
    if (buffer != null) {
      buffer.close();
    }
    return memory.allocate(length);
  }

  /** Takes the body of a message back, to receive another one in it. */
  @Override
  public void recycle(ArrowBuf body) {
    if (body != null && spare == null) {
      spare = body;
    } else if (body != null) {
      body.close();
    }
  }

  /** Returns the message with a sequence number, or null if it was already delivered. */
  private Pending expect(int sequence) throws ReadFailure {
    if (sequence - next < 0) {
      if (next >= 0 && sequence < 0) {
        throw invalid("message " + Integer.toUnsignedString(sequence) + " precedes the first one");
      }
      countRepeated(true);
      return null;
    }
    if (end != null && sequence - end >= 0) {
      throw invalid("message " + sequence + " is beyond the end of the stream");
    }
    Pending part = pending.get(sequence);
    if (part == null) {
      if (pending.size() >= Limits.PENDING_MESSAGES) {
        throw invalid("more than " + Limits.PENDING_MESSAGES + " messages wait for an earlier one");
      }
      part = new Pending();
      pending.put(sequence, part);
    }
    return part;
  }

  private void countRepeated(boolean isRepeated) throws ReadFailure {
    repeated = isRepeated ? repeated + 1 : 0;
    if (repeated > Limits.DUPLICATES) {
      throw invalid("the server repeats messages without end");
    }
  }

  private byte[] receivePayload(int limit, int least) throws IOException {
    if (connection.length > limit || connection.length < least) {
      throw invalid("a message has " + connection.length + " bytes");
    }
    byte[] payload = new byte[(int) connection.length];
    connection.receive(ByteBuffer.wrap(payload));
    return payload;
  }

  private void skip(long length) throws IOException {
    byte[] ignored = new byte[(int) Math.min(length, 64 << 10)];
    for (long left = length; left > 0; left -= ignored.length) {
      connection.receive(ByteBuffer.wrap(ignored, 0, (int) Math.min(left, ignored.length)));
    }
  }

  private ReadFailure failure(byte[] payload, int offset) {
    int length = payload.length - offset;
    if (length <= Limits.FAILURE_BYTES) {
      try {
        JsonNode reason = Json.MAPPER.readTree(payload, offset, length);
        String message = reason.path("message").asText("no reason");
        return ReadFailure.reported(reason.path("code").asText("UNKNOWN"), Text.line(message));
      } catch (IOException | RuntimeException error) {
        // reported below
      }
    }
    return invalid("the server reported a malformed failure");
  }

  private ReadFailure invalid(String problem) {
    return ReadFailure.invalid(
        connection + ", message " + Integer.toUnsignedString(next) + ": " + problem);
  }

  @Override
  public void close() throws IOException {
    boolean hasEnded = hasEnded();
    for (Pending part : pending.values()) {
      if (part.body != null) {
        part.body.close();
      }
    }
    pending.clear();
    if (spare != null) {
      spare.close();
      spare = null;
    }
    connections.close(address, connection, hasEnded);
  }
}
