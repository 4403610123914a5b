package io.splitarrow.spark;

import java.util.Arrays;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** The metric of a scan that bounds the memory of an executor. */
public final class PeakMemory implements CustomMetric {
  static final String NAME = "peakMemory";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "largest memory of a task outside of the heap";
  }

  @Override
  public String aggregateTaskMetrics(long[] values) {
    return Long.toString(Arrays.stream(values).max().orElse(0));
  }

  /** The value of one task. */
  record InTask(long value) implements CustomTaskMetric {
    @Override
    public String name() {
      return NAME;
    }
  }
}
