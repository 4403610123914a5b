package io.splitarrow.spark;

import org.apache.spark.sql.connector.read.streaming.Offset;

/** An offset as the planner wrote it. The Python source has the same form in its checkpoints. */
final class StreamOffset extends Offset {
  private final String json;

  StreamOffset(String json) {
    this.json = json;
  }

  @Override
  public String json() {
    return json;
  }
}
