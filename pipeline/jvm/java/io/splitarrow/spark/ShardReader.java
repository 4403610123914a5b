package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.splitarrow.spark.ReadFailure.Kind;
import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** One shard, read to its end over as many connections as it takes, without repeating a row. */
final class ShardReader implements Closeable {
  private static final Logger LOG = LoggerFactory.getLogger("splitarrow");
  private static final Set<String> NOTICES = ConcurrentHashMap.newKeySet();
  private static final int ATTEMPTS = 8;
  private static final long FIRST_PAUSE_MILLIS = 50;
  private static final long LAST_PAUSE_MILLIS = 5000;

  private final ReadTask task;
  private final Shard shard;
  private final String filter;
  private final Connections connections;
  private final Memory memory;
  private final long limit;
  private final List<Replica> replicas;
  private final List<Replica> used = new ArrayList<>();
  private final Map<String, String> reasons = new LinkedHashMap<>();
  private BatchStream stream;
  private boolean mapsFile;
  private int current;
  private int failures;
  private long rows;
  private long earlierBytes;
  private long earlierMapped;

  ShardReader(
      ReadTask task,
      Shard shard,
      String filter,
      long limit,
      Connections connections,
      Memory memory) {
    this.connections = connections;
    this.task = task;
    this.shard = shard;
    this.filter = filter;
    this.limit = limit;
    this.memory = memory;
    replicas = new ArrayList<>(shard.replicas());
    mapsFile = shard.file() != null;
  }

  /** Returns the bytes received so far. */
  long received() {
    return earlierBytes + (stream == null ? 0 : stream.received());
  }

  /** Returns the bytes of a mapped file that the columns so far consist of. */
  long mapped() {
    return earlierMapped + (stream == null ? 0 : stream.mapped);
  }

  /** Returns whether the shard has no more rows, as far as the plan knows. */
  boolean isAtEnd() {
    return shard.rows() >= 0 && rows >= shard.rows();
  }

  /** Asks for the rows before they are needed. What fails is tried again when they are. */
  void prepare() throws IOException {
    try {
      if (!mapsFile) {
        stream = open();
      }
    } catch (ReadFailure failure) {
      closeStream();
    }
  }

  /** Returns the stream at its next record batch; null at the end of the shard. */
  BatchStream next() throws IOException {
    while (true) {
      try {
        if (limit >= 0 && rows >= limit) {
          return null;
        }
        if (stream == null) {
          stream = open();
        }
        if (!stream.next()) {
          return null;
        }
        failures = 0;
        rows += stream.rows;
        return stream;
      } catch (ReadFailure failure) {
        closeStream();
        if (replicas.isEmpty()) { // no daemon serves the folder
          reasons.put(shard.file().path(), failure.getMessage());
          throw describe(failure);
        }
        if (mapsFile) {
          leaveFile(failure);
        } else {
          recover(failure);
        }
      }
    }
  }

  /** Continues at the daemons. The rows of the file so far are those that they have too. */
  private void leaveFile(ReadFailure failure) {
    mapsFile = false;
    if (NOTICES.add(task.dataset())) {
      LOG.warn("Reading '{}' from its daemons: {}", task.dataset(), failure.getMessage());
    }
  }

  /** Decides whether and where to continue after a failure. */
  private void recover(ReadFailure failure) throws IOException {
    Replica replica = replicas.get(current);
    reasons.put(replica.control(), failure.getMessage());
    boolean canResume = !replica.version().isEmpty();
    if (failure.kind == Kind.FATAL || !canResume) {
      throw describe(failure);
    }
    if (failure.kind == Kind.TICKET && !used.contains(replica)) {
      used.add(replica);
      return;
    }
    if (failure.kind != Kind.TRANSIENT) {
      if (replicas.size() == 1) {
        throw describe(failure);
      }
      replicas.remove(current);
      current %= replicas.size();
      return;
    }
    used.add(replica);
    failures++;
    if (failures >= ATTEMPTS * replicas.size()) {
      throw describe(failure);
    }
    current = (current + 1) % replicas.size();
    if (failures % replicas.size() == 0) {
      pause(failures / replicas.size() - 1);
    }
  }

  private static void pause(int round) throws IOException {
    long most = Math.min(LAST_PAUSE_MILLIS, FIRST_PAUSE_MILLIS << Math.min(round, 10));
    try {
      Thread.sleep(most / 2 + ThreadLocalRandom.current().nextLong(most / 2 + 1));
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new java.io.InterruptedIOException("the task was killed");
    }
  }

  private ReadFailure describe(ReadFailure failure) {
    StringBuilder text = new StringBuilder();
    text.append("cannot read shard ").append(shard.ordinal()).append(" of '");
    text.append(task.dataset()).append("' after ").append(rows).append(" of its rows: ");
    reasons.forEach((server, reason) -> text.append(server).append(": ").append(reason).append("; "));
    text.setLength(text.length() - 2);
    return new ReadFailure(failure.kind, text.toString());
  }

  private BatchStream open() throws IOException {
    if (mapsFile) {
      return map();
    }
    Replica replica = replicas.get(current);
    long left = limit < 0 ? -1 : limit - rows;
    byte[] ticket;
    if (!replica.isSigned()) {
      ticket = replica.ticketFrom(rows, left);
    } else if (rows == 0 && !used.contains(replica)) {
      ticket = replica.ticket();
    } else {
      // A signed ticket can be used once, and expires.
      replica = renew(replica, left);
      ticket = replica.ticket();
    }
    ReadFailure last = null;
    for (Address address : replica.addresses()) {
      MessageStream messages = null;
      try {
        messages = new MessageStream(address, ticket, connections, memory);
        return new BatchStream(messages, task.columns(), memory);
      } catch (ReadFailure failure) {
        last = failure;
        if (failure.kind != Kind.TRANSIENT) {
          break;
        }
      }
    }
    throw last == null ? ReadFailure.invalid("the server offers no address") : last;
  }

  private BatchStream map() throws IOException {
    try {
      return new BatchStream(new MappedShard(shard.file()), task.columns(), memory);
    } catch (ReadFailure | java.nio.channels.ClosedByInterruptException error) {
      throw error;
    } catch (IOException error) {
      throw ReadFailure.invalid("cannot map " + shard.file().path() + ": " + error);
    }
  }

  private Replica renew(Replica replica, long left) throws IOException {
    ObjectNode request = Json.MAPPER.createObjectNode();
    request.put("operation", "renew");
    request.set("options", Json.MAPPER.valueToTree(task.options()));
    request.put("control", replica.control());
    request.put("version", replica.version());
    request.put("shard", replica.shard());
    request.set("columns", Replica.toJson(task.columnNames()));
    request.put("filter", filter);
    if (rows > 0) {
      request.put("offset", rows);
    }
    if (left >= 0) {
      request.put("limit", left);
    }
    try {
      JsonNode answer = Planner.call(task.python(), request);
      return Replica.of(answer.get("replica"));
    } catch (IllegalArgumentException error) {
      throw ReadFailure.broken("cannot renew the ticket: " + error.getMessage());
    }
  }

  private void closeStream() throws IOException {
    if (stream != null) {
      earlierBytes += stream.received();
      earlierMapped += stream.mapped;
      stream.close();
      stream = null;
    }
  }

  @Override
  public void close() throws IOException {
    closeStream();
  }
}
