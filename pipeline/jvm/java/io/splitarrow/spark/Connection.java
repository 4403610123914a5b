package io.splitarrow.spark;

import java.io.Closeable;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.StandardSocketOptions;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import javax.net.ssl.SSLHandshakeException;

/**
 * A TCP connection that receives frames; see "TCP" in docs/wire.md.
 *
 * <p>Small messages pass through a staging buffer. Large bodies are received in place.
 */
final class Connection implements Closeable {
  private static final byte[] PREFACE = "SPLTARW\1".getBytes(StandardCharsets.US_ASCII);
  private static final int HEADER = 24;
  private static final int STAGING = 64 << 10;

  private final SocketChannel channel;
  private final TlsChannel tls;
  private final Selector selector;
  private final ByteBuffer staging =
      ByteBuffer.allocateDirect(STAGING).order(ByteOrder.LITTLE_ENDIAN).limit(0);
  private final String peer;
  private final long stallMillis;
  private boolean isOpened;
  private boolean isGreeted;

  /** The bytes received so far. */
  long received;

  /** When the last stream ended, by the clock of this JVM. */
  long idleSince;

  /** The header of the current frame. */
  boolean tagged;

  long length;
  long tag;

  Connection(Address address, Timeouts timeouts) throws IOException {
    peer = address.toString();
    stallMillis = timeouts.stallMillis();
    channel = SocketChannel.open();
    Selector opened = null;
    try {
      opened = Selector.open();
      channel.socket().connect(
          new InetSocketAddress(address.host(), address.port()), timeouts.connectMillis());
      channel.setOption(StandardSocketOptions.TCP_NODELAY, true);
      channel.configureBlocking(false);
      channel.register(opened, SelectionKey.OP_READ);
      tls =
          address.tls() == null
              ? null
              : new TlsChannel(channel, address.tls().connect(address.host(), address.port()));
    } catch (IOException | RuntimeException error) {
      channel.close();
      if (opened != null) {
        opened.close();
      }
      throw ReadFailure.broken(peer + ": cannot connect: " + reason(error));
    }
    selector = opened;
  }

  /** Sends the preface once, a request for keep-alives if the server knows them, and the ticket. */
  void request(Address address, byte[] ticket) throws IOException {
    ByteBuffer out =
        ByteBuffer.allocate(PREFACE.length + 2 * HEADER + 4 + ticket.length)
            .order(ByteOrder.LITTLE_ENDIAN);
    if (!isOpened) {
      out.put(PREFACE);
      isOpened = true;
      putKeepAlive(out, address);
    }
    putHeader(out, ticket.length, address.wantData());
    sendAll(out.put(ticket).flip());
  }

  /** Confirms the end of a stream; returns whether another one may follow on this connection. */
  boolean confirm(Address address) throws IOException {
    if (address.keepAlive() == null || staging.hasRemaining()) {
      return false;
    }
    ByteBuffer out = ByteBuffer.allocate(HEADER + 4).order(ByteOrder.LITTLE_ENDIAN);
    putKeepAlive(out, address);
    sendAll(out.flip());
    return true;
  }

  private void putKeepAlive(ByteBuffer out, Address address) {
    if (address.keepAlive() != null) {
      putHeader(out, 4, address.keepAlive());
      out.putInt((int) Math.min(Math.max(100, stallMillis / 3), 60_000));
    }
  }

  private void sendAll(ByteBuffer out) throws IOException {
    while (out.hasRemaining()) {
      if (send(out) == 0) {
        await(tls == null || tls.isBlockedOnWrite() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
      }
    }
    channel.keyFor(selector).interestOps(SelectionKey.OP_READ);
  }

  private void receivePreface() throws IOException {
    byte[] answer = new byte[PREFACE.length];
    receive(ByteBuffer.wrap(answer));
    if (!java.util.Arrays.equals(answer, PREFACE)) {
      throw ReadFailure.invalid(peer + ": the server does not speak this protocol");
    }
    isGreeted = true;
  }

  private int send(ByteBuffer out) throws IOException {
    try {
      return tls == null ? channel.write(out) : tls.write(out);
    } catch (java.nio.channels.ClosedChannelException error) {
      throw error; // the task was killed
    } catch (IOException error) {
      throw describe(error);
    }
  }

  /** Returns the failure of a connection. Certificates stay as they are, however often one asks. */
  private ReadFailure describe(IOException error) {
    return error instanceof SSLHandshakeException
        ? new ReadFailure(ReadFailure.Kind.REFUSED, peer + ": TLS failed: " + reason(error))
        : ReadFailure.broken(peer + ": the connection broke: " + reason(error));
  }

  private static void putHeader(ByteBuffer out, int length, long tag) {
    out.putLong(1).putLong(length).putLong(tag);
  }

  /** Receives the header of the next frame, and before the first one the server's preface. */
  void nextFrame() throws IOException {
    if (!isGreeted) {
      receivePreface();
    }
    while (staging.remaining() < HEADER) {
      staging.compact();
      fill(staging);
      staging.flip();
    }
    long kind = staging.getLong();
    length = staging.getLong();
    tag = staging.getLong();
    tagged = kind == 1;
    if (kind < 0 || kind > 1 || length < 0 || (!tagged && tag != 0)) {
      throw ReadFailure.invalid(peer + ": malformed header of a frame");
    }
  }

  /** Receives the payload of the current frame, or a part of it. */
  void receive(ByteBuffer target) throws IOException {
    if (staging.hasRemaining()) {
      int size = Math.min(staging.remaining(), target.remaining());
      target.put(staging.slice(staging.position(), size));
      staging.position(staging.position() + size);
    }
    while (target.hasRemaining()) {
      if (target.remaining() >= STAGING / 2) {
        fill(target);
      } else {
        staging.clear();
        fill(staging);
        staging.flip();
        int size = Math.min(staging.remaining(), target.remaining());
        target.put(staging.slice(staging.position(), size));
        staging.position(staging.position() + size);
      }
    }
  }

  /** Receives at least one byte. */
  private void fill(ByteBuffer target) throws IOException {
    while (true) {
      int size;
      try {
        size = tls == null ? channel.read(target) : tls.read(target);
      } catch (java.nio.channels.ClosedChannelException error) {
        throw error; // the task was killed
      } catch (IOException error) {
        throw describe(error);
      }
      if (size > 0) {
        received += size;
        return;
      }
      if (size < 0) {
        throw ReadFailure.broken(peer + ": the connection ended before the stream did");
      }
      await(
          tls != null && tls.isBlockedOnWrite() ? SelectionKey.OP_WRITE : SelectionKey.OP_READ);
    }
  }

  private void await(int operation) throws IOException {
    channel.keyFor(selector).interestOps(operation);
    int ready = selector.select(stallMillis);
    selector.selectedKeys().clear();
    if (Thread.currentThread().isInterrupted()) {
      throw new java.io.InterruptedIOException("the task was killed");
    }
    if (ready == 0) {
      throw ReadFailure.broken(peer + ": no data for " + stallMillis / 1000.0 + " s");
    }
  }

  private static String reason(Exception error) {
    return error.getMessage() == null ? error.getClass().getSimpleName() : error.getMessage();
  }

  @Override
  public String toString() {
    return peer;
  }

  @Override
  public void close() throws IOException {
    try {
      selector.close();
    } finally {
      channel.close();
    }
  }
}
