package io.splitarrow.spark;

import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;

/** The connections of one task. One whose stream has ended carries the next stream. */
final class Connections implements Closeable {
  // The server closes idle connections later.
  private static final long MAX_IDLE_NANOS = 1_000_000_000L;

  private final Timeouts timeouts;
  private final Map<Address, Deque<Connection>> idle = new HashMap<>();

  Connections(Timeouts timeouts) {
    this.timeouts = timeouts;
  }

  /** Returns an idle connection to a server, or a new one. */
  Connection open(Address address) throws IOException {
    Deque<Connection> known = idle.getOrDefault(address, new ArrayDeque<>());
    while (!known.isEmpty()) {
      Connection connection = known.pop();
      if (System.nanoTime() - connection.idleSince < MAX_IDLE_NANOS) {
        return connection;
      }
      connection.close();
    }
    return new Connection(address, timeouts);
  }

  /** Takes a connection back: it stays open if its stream was received to the end. */
  void close(Address address, Connection connection, boolean hasEnded) throws IOException {
    try {
      if (hasEnded && connection.confirm(address)) {
        connection.idleSince = System.nanoTime();
        idle.computeIfAbsent(address, key -> new ArrayDeque<>()).push(connection);
        return;
      }
    } catch (IOException error) {
      // The stream is complete; the server has closed.
    }
    connection.close();
  }

  @Override
  public void close() throws IOException {
    for (Deque<Connection> connections : idle.values()) {
      for (Connection connection : connections) {
        connection.close();
      }
    }
    idle.clear();
  }
}
