package io.splitarrow.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;

/** A streaming read: the planner divides the versions of a dataset into micro-batches. */
final class DatasetStream implements MicroBatchStream, SupportsTriggerAvailableNow {
  private final DatasetScan scan;
  private final Described dataset;
  private final Path start;
  private String last;

  /**
   * Creates the read.
   *
   * @param checkpoint the folder of this source in the checkpoint of the query
   */
  DatasetStream(DatasetScan scan, Described dataset, String checkpoint) {
    this.scan = scan;
    this.dataset = dataset;
    this.start = new Path(checkpoint, "start");
  }

  /** Returns the offset at which the query began, which its checkpoint keeps from the first run. */
  @Override
  public Offset initialOffset() {
    try {
      FileSystem files =
          start.getFileSystem(SparkContext.getOrCreate().hadoopConfiguration());
      if (files.exists(start)) {
        try (var input = files.open(start)) {
          return new StreamOffset(new String(input.readAllBytes(), StandardCharsets.UTF_8));
        }
      }
      String offset = offset(dataset.request("stream_start"));
      Path written = start.suffix(".tmp");
      try (OutputStream output = files.create(written, true)) {
        output.write(offset.getBytes(StandardCharsets.UTF_8));
      }
      if (!files.rename(written, start)) {
        throw new IOException("cannot write " + start);
      }
      return new StreamOffset(offset);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private String offset(ObjectNode request) {
    return Planner.call(dataset.python(), request).get("offset").asText();
  }

  @Override
  public Offset deserializeOffset(String json) {
    return new StreamOffset(json);
  }

  @Override
  public void prepareForTriggerAvailableNow() {
    last = offset(dataset.request("stream_latest"));
  }

  /** Returns a limit that stands for the rates in the options, which the planner applies. */
  @Override
  public ReadLimit getDefaultReadLimit() {
    return ReadLimit.maxFiles(Integer.MAX_VALUE);
  }

  @Override
  public Offset latestOffset(Offset begin, ReadLimit limit) {
    ObjectNode request = dataset.request("stream_latest");
    request.put("start", begin.json());
    request.put("last", last);
    request.put("limited", !(limit instanceof ReadAllAvailable));
    return new StreamOffset(offset(request));
  }

  @Override
  public Offset latestOffset() {
    throw new UnsupportedOperationException("Spark passes a limit");
  }

  @Override
  public InputPartition[] planInputPartitions(Offset begin, Offset end) {
    ObjectNode request = dataset.request("stream_plan");
    request.put("start", begin.json());
    request.put("end", end.json());
    return scan.planShards(request, List.of());
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return scan.createReaderFactory();
  }

  @Override
  public void commit(Offset end) {}

  @Override
  public void stop() {}
}
