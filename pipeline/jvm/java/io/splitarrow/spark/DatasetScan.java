package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalLong;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportPartitioning;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.SupportsRuntimeV2Filtering;
import org.apache.spark.sql.connector.read.partitioning.KeyGroupedPartitioning;
import org.apache.spark.sql.connector.read.partitioning.Partitioning;
import org.apache.spark.sql.connector.read.partitioning.UnknownPartitioning;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.IntegralType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The read of one query: which columns and rows of a version, and from which servers. */
final class DatasetScan
    implements SupportsReportStatistics, SupportsReportPartitioning, SupportsRuntimeV2Filtering {
  private static final int MAX_VALUES = 100_000;

  private final Described dataset;
  private final StructType schema;
  private final StructType metadata;
  private final String filter;
  private final List<Predicate> predicates;
  private final int limit;
  private final TopRows top;
  private final Aggregates aggregates;
  private final Map<List<Predicate>, InputPartition[]> partitions = new HashMap<>();
  private List<Predicate> runtime = List.of();
  private Statistics statistics;
  private boolean isStream;

  DatasetScan(
      Described dataset,
      StructType schema,
      StructType metadata,
      String filter,
      List<Predicate> predicates,
      int limit,
      TopRows top,
      Aggregates aggregates) {
    this.dataset = dataset;
    this.schema = schema;
    this.metadata = metadata;
    this.filter = filter;
    this.predicates = predicates;
    this.limit = limit;
    this.top = top;
    this.aggregates = aggregates;
  }

  @Override
  public StructType readSchema() {
    return metadata == null ? schema : schema.add(RowMetadata.NAME, metadata);
  }

  @Override
  public Batch toBatch() {
    return new DatasetBatch(this, runtime);
  }

  /** The partitions of a scan, after what a join has found about the other side, if anything. */
  private record DatasetBatch(DatasetScan scan, List<Predicate> runtime) implements Batch {
    @Override
    public InputPartition[] planInputPartitions() {
      return scan.plan(runtime);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
      return scan.createReaderFactory();
    }
  }

  /** Returns the columns of which a server can find several values, and which have an order. */
  @Override
  public NamedReference[] filterAttributes() {
    if (!dataset.pushdown() || limit >= 0 || top != null || aggregates != null) {
      return new NamedReference[0];
    }
    Set<String> unique = uniqueNames();
    return Arrays.stream(schema.fields())
        .filter(field -> isFilterable(field.dataType()) && unique.contains(field.name()))
        .map(field -> Expressions.column(Catalog.quote(field.name())))
        .toArray(NamedReference[]::new);
  }

  /** Returns the columns whose names Spark can resolve. By default it ignores case. */
  private Set<String> uniqueNames() {
    String[] names = readSchema().fieldNames();
    Map<String, Integer> counts =
        new TreeMap<>(
            SQLConf.get().caseSensitiveAnalysis()
                ? Comparator.naturalOrder()
                : String.CASE_INSENSITIVE_ORDER);
    for (String name : names) {
      counts.merge(name, 1, Integer::sum);
    }
    return Arrays.stream(names)
        .filter(name -> counts.get(name) == 1)
        .collect(Collectors.toSet());
  }

  private static boolean isFilterable(DataType type) {
    return type instanceof IntegralType
        || type instanceof DecimalType
        || type.equals(DataTypes.StringType)
        || type.equals(DataTypes.DateType)
        || type.equals(DataTypes.TimestampType)
        || type.equals(DataTypes.TimestampNTZType);
  }

  @Override
  public void filter(Predicate[] found) {
    runtime = List.of(found);
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    isStream = true;
    statistics = null;
    return new DatasetStream(this, dataset, checkpoint);
  }

  @Override
  public ColumnarSupportMode columnarSupportMode() {
    return ColumnarSupportMode.PARTITION_DEFINED;
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return new CustomMetric[] {new BytesReceived(), new BytesMapped(), new PeakMemory()};
  }

  @Override
  public String description() {
    String filters =
        predicates.stream().map(Object::toString).collect(Collectors.joining(", ", "[", "]"));
    return "splitarrow "
        + dataset.dataset()
        + " ReadSchema: "
        + readSchema().catalogString()
        + ", PushedFilters: "
        + filters
        + (limit < 0 ? "" : ", PushedLimit: " + limit)
        + (top == null ? "" : ", PushedTopN: " + top)
        + (aggregates == null ? "" : ", PushedAggregates: " + aggregates.functions())
        + (aggregates == null || aggregates.groups().isEmpty()
            ? ""
            : ", PushedGroupBy: " + aggregates.groups());
  }

  @Override
  public String toString() {
    return description();
  }

  /** Reports the columns of which each partition has one value, if Spark joins by partitions. */
  @Override
  public Partitioning outputPartitioning() {
    if (!isKeyed()) {
      return new UnknownPartitioning(0);
    }
    InputPartition[] found = plan(List.of());
    if (found.length == 0 || !(found[0] instanceof KeyedPartition)) {
      return new UnknownPartitioning(found.length);
    }
    Expression[] keys =
        dataset.partitionBy().stream()
            .map(name -> Expressions.identity(Catalog.quote(name)))
            .toArray(Expression[]::new);
    return new KeyGroupedPartitioning(keys, found.length);
  }

  private boolean isKeyed() {
    return SQLConf.get().v2BucketingEnabled()
        && dataset.pushdown()
        && !dataset.partitionBy().isEmpty()
        && uniqueNames().containsAll(dataset.partitionBy())
        && dataset.partitionBy().stream().allMatch(this::isComparable)
        && !isStream
        && limit < 0
        && top == null
        && aggregates == null;
  }

  private boolean isComparable(String column) {
    return Aggregates.comparable(dataset, column) != null;
  }

  private synchronized InputPartition[] plan(List<Predicate> runtime) {
    return partitions.computeIfAbsent(runtime, this::request);
  }

  private InputPartition[] request(List<Predicate> runtime) {
    if (aggregates != null) {
      return new InputPartition[] {new AggregatePartition(aggregates.rows())};
    }
    boolean isWhole = filter == null && runtime.isEmpty();
    if (readSchema().isEmpty() && isWhole && dataset.rows() >= 0 && dataset.pushdown()) {
      long rows = limit < 0 ? dataset.rows() : Math.min(limit, dataset.rows());
      return new InputPartition[] {new CountPartition(rows)};
    }
    return planShards(dataset.request("plan"), runtime);
  }

  /** Returns the partitions of the shards that a request to the planner selects. */
  InputPartition[] planShards(ObjectNode request, List<Predicate> runtime) {
    request.set("columns", Replica.toJson(List.of(requested().fieldNames())));
    request.put("filter", filter);
    request.set("top", top == null ? null : top.toJson());
    ArrayNode found = request.putArray("runtime");
    for (Predicate predicate : runtime) {
      if (predicate.children().length <= MAX_VALUES) {
        found.add(PredicateJson.encode(predicate));
      }
    }
    request.put("keyed", isKeyed());
    SQLConf conf = SQLConf.get();
    request.put("max_bytes", conf.filesMaxPartitionBytes());
    request.put("open_bytes", conf.filesOpenCostInBytes());
    request.put("parallelism", parallelism(conf));
    JsonNode answer = Planner.call(dataset.python(), request);
    long total = answer.path("limit").asLong(-1);
    String applied = answer.path("filter").asText(null);
    JsonNode keys = answer.path("keys"); // of each task, if its rows have one
    List<InputPartition> tasks = new ArrayList<>();
    for (JsonNode part : answer.get("partitions")) {
      List<Shard> shards = new ArrayList<>();
      try {
        for (JsonNode shard : part) {
          List<Replica> replicas = new ArrayList<>();
          for (JsonNode replica : shard.get("replicas")) {
            replicas.add(Replica.of(replica));
          }
          shards.add(
              new Shard(
                  shard.get("ordinal").asInt(),
                  shard.path("rows").asLong(-1),
                  replicas,
                  file(shard.path("file"))));
        }
      } catch (IOException error) {
        throw new IllegalStateException("the planner answered with a malformed ticket");
      }
      ShardPartition task = new ShardPartition(shards, applied, smaller(total, limit));
      tasks.add(
          keys.isArray() ? new KeyedPartition(task, key(keys.get(tasks.size()))) : task);
    }
    return tasks.toArray(InputPartition[]::new);
  }

  private InternalRow key(JsonNode values) {
    StructField[] fields =
        dataset.partitionBy().stream().map(schema::apply).toArray(StructField[]::new);
    return AggregateRows.toRow(new StructType(fields), Aggregates.values(values));
  }

  /** Returns how many tasks of a read have something to do, as for files. */
  private static int parallelism(SQLConf conf) {
    for (String setting :
        List.of("spark.sql.files.minPartitionNum", "spark.sql.leafNodeDefaultParallelism")) {
      if (conf.contains(setting)) {
        return Integer.parseInt(conf.getConfString(setting));
      }
    }
    return Math.max(1, SparkContext.getOrCreate().defaultParallelism());
  }

  private static LocalFile file(JsonNode node) {
    return node.isObject()
        ? new LocalFile(node.get("path").asText(), node.get("bytes").asLong())
        : null;
  }

  private static long smaller(long one, long other) {
    return one < 0 ? other : other < 0 ? one : Math.min(one, other);
  }

  /** Returns the columns to request: a server sends at least one. */
  private StructType requested() {
    if (!schema.isEmpty()) {
      return schema;
    }
    StructField narrowest = null;
    for (StructField field : dataset.schema().fields()) {
      if (narrowest == null
          || field.dataType().defaultSize() < narrowest.dataType().defaultSize()) {
        narrowest = field;
      }
    }
    return narrowest == null ? schema : new StructType(new StructField[] {narrowest});
  }

  PartitionReaderFactory createReaderFactory() {
    return new ColumnarReaders(
        new ReadTask(
            dataset.options(),
            dataset.dataset(),
            schema,
            requested(),
            metadata == null
                ? null
                : new RowMetadata(
                    metadata,
                    dataset.dataset(),
                    dataset.version(),
                    schema.isEmpty() && filter == null),
            dataset.timeouts(),
            dataset.memoryLimit(),
            Interpreters.executor(),
            dataset.lease()));
  }

  @Override
  public synchronized Statistics estimateStatistics() {
    if (statistics == null) {
      statistics = estimate();
    }
    return statistics;
  }

  private Statistics estimate() {
    if (isStream) {
      // The micro-batches may be larger than the version that the query was loaded with.
      return new Estimate(OptionalLong.empty(), OptionalLong.empty());
    }
    if (aggregates != null) {
      long rows = aggregates.rows().size();
      return new Estimate(OptionalLong.of(8 * Math.max(1, rows)), OptionalLong.of(rows));
    }
    long rows = dataset.rows();
    long bytes = dataset.bytes();
    if (filter != null || top != null) {
      ObjectNode request = dataset.request("estimate");
      request.put("filter", filter);
      request.set("top", top == null ? null : top.toJson());
      JsonNode answer = Planner.call(dataset.python(), request);
      rows = answer.path("rows").asLong(-1);
      bytes = answer.path("bytes").asLong(-1);
    }
    return Estimate.of(dataset.schema(), schema, rows, bytes);
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof DatasetScan scan
        && dataset.options().equals(scan.dataset.options())
        && dataset.version().equals(scan.dataset.version())
        && !dataset.version().isEmpty()
        && schema.equals(scan.schema)
        && Objects.equals(metadata, scan.metadata)
        && Objects.equals(filter, scan.filter)
        && limit == scan.limit
        && Objects.equals(top, scan.top)
        && Objects.equals(aggregates, scan.aggregates);
  }

  @Override
  public int hashCode() {
    return Objects.hash(
        dataset.dataset(), dataset.version(), schema, filter, limit, top, aggregates);
  }
}
