package io.splitarrow.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * A Python process that works for this JVM: {@code python -m splitarrow.pipeline.plan}.
 *
 * <p>It answers one line of JSON with another; record batches may follow a line. Idle processes wait
 * for the next request, and all end with this JVM. Requests contain tokens, so neither they nor the
 * answers appear in any message.
 */
final class Planner implements AutoCloseable {
  private static final int MAX_IDLE = Math.max(2, Runtime.getRuntime().availableProcessors());
  private static final Map<String, Deque<Planner>> IDLE = new HashMap<>();
  private static final Map<String, Planner> PLANNING = new HashMap<>();

  private final String python;
  private final Process process;
  private final OutputStream requests;
  private final BufferedReader answers;
  private volatile String complaint = "";
  private boolean isIdle;

  private Planner(String python) throws IOException {
    this.python = python;
    process = new ProcessBuilder(python, "-m", "splitarrow.pipeline.plan").start();
    requests = process.getOutputStream();
    answers =
        new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
    Thread reader = new Thread(this::readComplaints, "splitarrow-planner");
    reader.setDaemon(true);
    reader.start();
  }

  private void readComplaints() {
    try (BufferedReader lines =
        new BufferedReader(
            new InputStreamReader(process.getErrorStream(), StandardCharsets.UTF_8))) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        complaint = line.isBlank() ? complaint : line;
      }
    } catch (IOException error) {
      complaint = String.valueOf(error.getMessage());
    }
  }

  /**
   * Returns an idle process, or a new one.
   *
   * @throws PlannerMissing if Python does not start
   */
  static Planner acquire(String python) {
    synchronized (IDLE) {
      Deque<Planner> idle = IDLE.getOrDefault(python, new ArrayDeque<>());
      while (!idle.isEmpty()) {
        Planner planner = idle.pop();
        if (planner.process.isAlive()) {
          planner.isIdle = false;
          return planner;
        }
      }
    }
    try {
      return new Planner(python);
    } catch (IOException error) {
      throw new PlannerMissing(python, String.valueOf(error.getMessage()));
    }
  }

  /**
   * Sends a request to the process that plans, and returns the answer.
   *
   * <p>It is always the same process, which holds the locks on the folders that are read.
   *
   * @throws IllegalArgumentException with the planner's message, if it reports an error; Spark
   *     passes this exception on to users unchanged
   * @throws Missing if there is no such dataset
   * @throws PlannerMissing if Python does not start, or lacks splitarrow
   */
  static synchronized JsonNode call(String python, ObjectNode request) {
    Planner planner = PLANNING.get(python);
    if (planner == null || !planner.process.isAlive()) {
      planner = acquire(python);
      PLANNING.put(python, planner);
    }
    try {
      planner.send(request);
      return planner.receive();
    } catch (PlannerMissing error) {
      PLANNING.remove(python);
      planner.process.destroy();
      throw error;
    }
  }

  /** Does the same in another process, because the answer may take long. */
  static JsonNode callApart(String python, ObjectNode request) {
    try (Planner planner = acquire(python)) {
      planner.send(request);
      return planner.receive();
    }
  }

  /** Sends a request. */
  void send(ObjectNode request) {
    try {
      requests.write(
          (Json.MAPPER.writeValueAsString(request) + "\n").getBytes(StandardCharsets.UTF_8));
      requests.flush();
    } catch (IOException error) {
      throw failure();
    }
  }

  /** Returns where to write what follows a request. */
  OutputStream data() {
    return requests;
  }

  /** Returns the answer to a request; the process is then ready for another one. */
  JsonNode receive() {
    JsonNode answer;
    try {
      requests.flush();
      String line = answers.readLine();
      if (line == null) {
        throw failure();
      }
      answer = Json.MAPPER.readTree(line);
    } catch (JsonProcessingException error) {
      throw new PlannerMissing(python, "it printed something else than its answer");
    } catch (IOException error) {
      throw failure();
    }
    if (!answer.path("ended").asBoolean()) {
      isIdle = true;
    }
    if (answer.hasNonNull("error")) {
      String message = Text.line(answer.get("error").asText());
      throw answer.path("missing").asBoolean()
          ? new Missing(message)
          : new IllegalArgumentException(message);
    }
    return answer;
  }

  /**
   * Returns why the process takes no more data: what it answered, or how it died.
   *
   * <p>A process that fails in the middle of record batches answers, and ends.
   */
  RuntimeException failure() {
    try {
      String line = answers.readLine();
      if (line != null) {
        return new IllegalArgumentException(
            Text.line(Json.MAPPER.readTree(line).path("error").asText("no error")));
      }
      process.waitFor(5, TimeUnit.SECONDS);
      Thread.sleep(50); // its last line may still be on the way
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    } catch (IOException error) {
      // What it printed last tells more.
    }
    return new PlannerMissing(python, complaint);
  }

  /** Keeps the process for the next request, or ends it if its answer is still due. */
  @Override
  public void close() {
    synchronized (IDLE) {
      Deque<Planner> idle = IDLE.computeIfAbsent(python, key -> new ArrayDeque<>());
      if (isIdle && idle.size() < MAX_IDLE) {
        idle.push(this);
        return;
      }
    }
    process.destroy();
  }

  /** There is no such dataset. */
  static final class Missing extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    Missing(String message) {
      super(message);
    }
  }

  /** The process does not start, or died. */
  static final class PlannerMissing extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    PlannerMissing(String python, String reason) {
      super(
          python
              + " -m splitarrow.pipeline.plan failed: "
              + Text.line(reason)
              + "; install splitarrow[spark] in that Python");
    }
  }
}
