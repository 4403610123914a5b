package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.distributions.Distribution;
import org.apache.spark.sql.connector.distributions.Distributions;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.SortDirection;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.RequiresDistributionAndOrdering;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;

/**
 * A write: tasks stage shards, and the driver commits those of all tasks as one version.
 *
 * <p>Each micro-batch of a stream is a job of its own, which the query and the number of the batch
 * name, so that it is committed once.
 */
final class ShardWrite implements RequiresDistributionAndOrdering, BatchWrite, StreamingWrite {
  private final String python;
  private final String query;
  private final Plan plan;
  private final List<String> partitionBy;

  private ShardWrite(String python, String query, Plan plan, List<String> partitionBy) {
    this.python = python;
    this.query = query;
    this.plan = plan;
    this.partitionBy = partitionBy;
  }

  static ShardWrite of(String python, LogicalWriteInfo info, JsonNode answer) {
    Plan plan =
        new Plan(
            answer.get("write").asText(),
            answer.get("job").asText(),
            Base64.getDecoder().decode(answer.get("schema").asText()),
            Interpreters.executor());
    List<String> columns = new ArrayList<>();
    answer.get("partition_by").forEach(name -> columns.add(name.asText()));
    return new ShardWrite(python, info.queryId(), plan, columns);
  }

  @Override
  public String description() {
    return "splitarrow";
  }

  @Override
  public BatchWrite toBatch() {
    return this;
  }

  @Override
  public StreamingWrite toStreaming() {
    finish("check", null, new WriterCommitMessage[0]);
    return this;
  }

  @Override
  public boolean useCommitCoordinator() {
    return true;
  }

  @Override
  public Distribution requiredDistribution() {
    return Distributions.unspecified();
  }

  /** Returns the order in which each shard has one value of the partition columns. */
  @Override
  public SortOrder[] requiredOrdering() {
    return partitionBy.stream()
        .map(name -> Expressions.column(Catalog.quote(name)))
        .map(column -> Expressions.sort(column, SortDirection.ASCENDING))
        .toArray(SortOrder[]::new);
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    finish("begin", null, new WriterCommitMessage[0]);
    Plan tasks = plan;
    return (partition, attempt) -> tasks.createWriter(partition, attempt, null);
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    finish("commit", null, messages);
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    finish("abort", null, messages);
  }

  @Override
  public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
    Plan tasks = plan;
    String name = query;
    return (partition, attempt, batch) ->
        tasks.createWriter(partition, attempt, name + "-" + batch);
  }

  @Override
  public void commit(long batch, WriterCommitMessage[] messages) {
    finish("commit", query + "-" + batch, messages);
  }

  @Override
  public void abort(long batch, WriterCommitMessage[] messages) {
    finish("abort", query + "-" + batch, messages);
  }

  private void finish(String operation, String job, WriterCommitMessage[] messages) {
    ObjectNode request = plan.request(operation, job);
    ArrayNode staged = request.putArray("messages");
    for (WriterCommitMessage message : messages) {
      staged.add(message == null ? null : ((Staged) message).shards());
    }
    Planner.callApart(python, request);
  }

  /**
   * What a task needs.
   *
   * @param write the settings, which only Python reads, on the driver
   * @param task those of them that a task needs
   * @param schema the columns that Python expects, as a message of Arrow
   * @param python the interpreter of the executors
   */
  record Plan(String write, String task, byte[] schema, String python) implements Serializable {
    private static final long serialVersionUID = 1L;

    /** Returns a request about the job of the write, or of one micro-batch. */
    ObjectNode request(String operation, String job) {
      ObjectNode request = Json.MAPPER.createObjectNode();
      request.put("operation", operation);
      request.put("write", write);
      request.put("job", job);
      return request;
    }

    DataWriter<InternalRow> createWriter(int partition, long attempt, String job) {
      ObjectNode request = Json.MAPPER.createObjectNode();
      request.put("operation", "stage");
      request.put("task", task);
      request.put("job", job);
      request.put("partition", partition);
      request.put("attempt", attempt);
      return new ShardWriter(this, request);
    }
  }

  /** The shards of a task, which only Python reads. */
  record Staged(String shards) implements WriterCommitMessage {
    private static final long serialVersionUID = 1L;
  }
}
