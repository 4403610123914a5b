package io.splitarrow.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * A Python process that speaks with the control plane: {@code python -m splitarrow.pipeline.plan}.
 *
 * <p>It answers one line of JSON with another. One process of each interpreter serves this JVM, and
 * ends with it. Requests contain tokens, so neither they nor the answers appear in any message.
 */
final class Planner {
  private static final Map<String, Planner> RUNNING = new HashMap<>();

  private final Process process;
  private final OutputStream requests;
  private final BufferedReader answers;
  private volatile String complaint = "";

  private Planner(String python) throws IOException {
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
   * Sends a request, and returns the answer.
   *
   * @throws IllegalArgumentException with the planner's message, if it reports an error; Spark
   *     passes this exception on to users unchanged
   * @throws Missing if there is no such dataset
   * @throws PlannerMissing if Python does not start, or lacks splitarrow
   */
  static synchronized JsonNode call(String python, ObjectNode request) {
    JsonNode answer = exchange(python, request);
    if (answer.hasNonNull("error")) {
      String message = Text.line(answer.get("error").asText());
      throw answer.path("missing").asBoolean()
          ? new Missing(message)
          : new IllegalArgumentException(message);
    }
    return answer;
  }

  private static JsonNode exchange(String python, ObjectNode request) {
    Planner planner = RUNNING.get(python);
    try {
      if (planner == null || !planner.process.isAlive()) {
        planner = new Planner(python);
        RUNNING.put(python, planner);
      }
      planner.requests.write((Json.MAPPER.writeValueAsString(request) + "\n").getBytes(
          StandardCharsets.UTF_8));
      planner.requests.flush();
      String line = planner.answers.readLine();
      if (line != null) {
        return Json.MAPPER.readTree(line);
      }
    } catch (JsonProcessingException error) {
      RUNNING.remove(python);
      throw new PlannerMissing(python, "it printed something else than its answer");
    } catch (IOException error) {
      if (planner == null) {
        throw new PlannerMissing(python, String.valueOf(error.getMessage()));
      }
    }
    RUNNING.remove(python);
    try {
      planner.process.waitFor(5, java.util.concurrent.TimeUnit.SECONDS);
      Thread.sleep(50); // its last line may still be on the way
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
    throw new PlannerMissing(python, planner.complaint);
  }

  /** There is no such dataset. */
  static final class Missing extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    Missing(String message) {
      super(message);
    }
  }

  /** The planner does not start, or died. */
  static final class PlannerMissing extends IllegalArgumentException {
    private static final long serialVersionUID = 1L;

    PlannerMissing(String python, String reason) {
      super(
          "cannot plan the read: "
              + python
              + " -m splitarrow.pipeline.plan failed: "
              + Text.line(reason)
              + "; install splitarrow[spark] in that Python");
    }
  }
}
