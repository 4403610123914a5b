package io.splitarrow.spark;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.SocketChannel;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLEngineResult;
import javax.net.ssl.SSLEngineResult.HandshakeStatus;

/** TLS over a socket that does not block. The handshake is part of the first reads and writes. */
final class TlsChannel {
  private static final ByteBuffer NOTHING = ByteBuffer.allocate(0);

  private final SocketChannel socket;
  private final SSLEngine engine;
  private final ByteBuffer incoming;
  private final ByteBuffer outgoing;
  private final ByteBuffer plain;
  private boolean isEnded;

  TlsChannel(SocketChannel socket, SSLEngine engine) throws IOException {
    this.socket = socket;
    this.engine = engine;
    int packet = engine.getSession().getPacketBufferSize();
    incoming = ByteBuffer.allocateDirect(2 * packet).limit(0);
    outgoing = ByteBuffer.allocateDirect(packet).limit(0);
    plain = ByteBuffer.allocateDirect(engine.getSession().getApplicationBufferSize()).limit(0);
    engine.beginHandshake();
  }

  /** Whether encrypted bytes wait for the socket to become writable. */
  boolean isBlockedOnWrite() {
    return outgoing.hasRemaining();
  }

  /**
   * Receives decrypted bytes.
   *
   * @return their number; 0 if the socket must become ready first; -1 after the last one
   */
  int read(ByteBuffer target) throws IOException {
    if (!plain.hasRemaining() && target.remaining() >= plain.capacity()) {
      int before = target.position();
      boolean ready = decrypt(target, before);
      int size = target.position() - before;
      return size == 0 && ready ? -1 : size;
    }
    if (!plain.hasRemaining()) {
      plain.clear();
      boolean ready = decrypt(plain, 0);
      plain.flip();
      if (!plain.hasRemaining()) {
        return ready ? -1 : 0;
      }
    }
    int size = Math.min(plain.remaining(), target.remaining());
    target.put(plain.slice(plain.position(), size));
    plain.position(plain.position() + size);
    return size;
  }

  /** Decrypts a record; returns false if the socket must become ready first. */
  private boolean decrypt(ByteBuffer sink, int position) throws IOException {
    while (sink.position() == position && !isEnded) {
      if (!flush() || !advance(null, sink)) {
        return false;
      }
    }
    return true;
  }

  /** Sends bytes, and returns their number; 0 if the socket must become ready first. */
  int write(ByteBuffer source) throws IOException {
    int before = source.remaining();
    while (source.hasRemaining() && flush() && advance(source, NOTHING)) {
      if (isEnded) {
        throw new IOException("the server closed the connection during the TLS handshake");
      }
    }
    flush();
    return before - source.remaining();
  }

  /** Sends what is encrypted; returns whether all of it is sent. */
  private boolean flush() throws IOException {
    while (outgoing.hasRemaining()) {
      if (socket.write(outgoing) == 0) {
        return false;
      }
    }
    return true;
  }

  /** Encrypts, decrypts or continues the handshake; returns false if the socket must be ready. */
  private boolean advance(ByteBuffer source, ByteBuffer sink) throws IOException {
    HandshakeStatus status = engine.getHandshakeStatus();
    if (status == HandshakeStatus.NEED_TASK) {
      engine.getDelegatedTask().run();
      return true;
    }
    boolean idle = status == HandshakeStatus.NOT_HANDSHAKING;
    if (status == HandshakeStatus.NEED_WRAP || (idle && source != null)) {
      outgoing.clear();
      try {
        engine.wrap(source == null ? NOTHING : source, outgoing);
      } finally {
        outgoing.flip();
      }
      return flush();
    }
    return unwrap(sink);
  }

  private boolean unwrap(ByteBuffer sink) throws IOException {
    SSLEngineResult result = engine.unwrap(incoming, sink);
    switch (result.getStatus()) {
      case CLOSED -> isEnded = true;
      case BUFFER_OVERFLOW -> throw new IOException("the server sent too large a record of TLS");
      case BUFFER_UNDERFLOW -> {
        incoming.compact();
        int size;
        try {
          size = socket.read(incoming);
        } finally {
          incoming.flip();
        }
        isEnded = size < 0;
        return size != 0;
      }
      default -> {}
    }
    return true;
  }
}
