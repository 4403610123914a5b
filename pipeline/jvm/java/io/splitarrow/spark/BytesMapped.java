package io.splitarrow.spark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** The metric of a scan that Spark shows in its user interface. */
public final class BytesMapped extends CustomSumMetric {
  static final String NAME = "bytesMapped";

  @Override
  public String name() {
    return NAME;
  }

  @Override
  public String description() {
    return "bytes of columns in mapped files";
  }

  /** The value of one task. */
  record InTask(long value) implements CustomTaskMetric {
    @Override
    public String name() {
      return NAME;
    }
  }
}
