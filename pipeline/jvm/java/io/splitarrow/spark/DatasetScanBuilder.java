package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.connector.expressions.SortOrder;
import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownAggregates;
import org.apache.spark.sql.connector.read.SupportsPushDownLimit;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownTopN;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** Collects what one query needs of a dataset: columns, filters, a limit, or only aggregates. */
final class DatasetScanBuilder
    implements ScanBuilder,
        SupportsPushDownRequiredColumns,
        SupportsPushDownV2Filters,
        SupportsPushDownLimit,
        SupportsPushDownTopN,
        SupportsPushDownAggregates {
  private final Described dataset;
  private StructType schema;
  private StructType metadata;
  private Predicate[] pushed = {};
  private String filter;
  private boolean isFilterExact = true;
  private int limit = -1;
  private TopRows top;
  private Aggregates aggregates;
  private boolean isAggregated;

  DatasetScanBuilder(Described dataset, StructType schema) {
    this.dataset = dataset;
    this.schema = schema;
  }

  /**
   * Keeps the required columns, and of structs the required fields.
   *
   * <p>A server sends a struct with all of its fields. Of a mapped file, only those that are read
   * become columns.
   */
  @Override
  public void pruneColumns(StructType required) {
    if (!isAggregated) {
      StructType columns = schema;
      List<String> known = List.of(columns.fieldNames());
      if (!known.contains(RowMetadata.NAME)) {
        metadata = RowMetadata.find(required);
      }
      schema =
          new StructType(
              Arrays.stream(required.fields())
                  .filter(field -> known.contains(field.name()))
                  .map(field -> prune(columns.apply(field.name()), field.dataType()))
                  .toArray(StructField[]::new));
    }
  }

  private static StructField prune(StructField field, DataType type) {
    return new StructField(field.name(), type, field.nullable(), field.metadata());
  }

  @Override
  public Predicate[] pushPredicates(Predicate[] predicates) {
    if (!dataset.pushdown() || predicates.length == 0) {
      return predicates;
    }
    ObjectNode request = dataset.request("push");
    ArrayNode candidates = request.putArray("predicates");
    for (Predicate predicate : predicates) {
      candidates.add(PredicateJson.encode(predicate));
    }
    JsonNode answer = Planner.call(dataset.python(), request);
    List<Predicate> accepted = new ArrayList<>();
    List<Predicate> rejected = new ArrayList<>();
    for (int index = 0; index < predicates.length; index++) {
      (answer.get("accepted").get(index).asBoolean() ? accepted : rejected).add(predicates[index]);
    }
    filter = answer.path("filter").asText(null);
    pushed = accepted.toArray(Predicate[]::new);
    isFilterExact = rejected.isEmpty();
    return rejected.toArray(Predicate[]::new);
  }

  @Override
  public Predicate[] pushedPredicates() {
    return pushed;
  }

  @Override
  public boolean pushLimit(int rows) {
    if (!dataset.pushdown()) {
      return false;
    }
    limit = rows;
    return true;
  }

  /** A shard is left out if its rows cannot be among the first ones. Spark sorts the others. */
  @Override
  public boolean pushTopN(SortOrder[] orders, int rows) {
    if (!dataset.pushdown() || !isFilterExact || filter != null || isAggregated) {
      return false;
    }
    top = TopRows.of(dataset, orders, rows);
    return top != null;
  }

  /** Every task applies the limit to its own rows, so Spark applies it once more. */
  @Override
  public boolean isPartiallyPushed() {
    return true;
  }

  @Override
  public boolean supportCompletePushDown(Aggregation candidates) {
    if (!dataset.pushdown() || !isFilterExact) {
      return false;
    }
    aggregates = Aggregates.of(dataset, candidates, filter);
    return aggregates != null;
  }

  @Override
  public boolean pushAggregation(Aggregation candidates) {
    if (aggregates == null && !supportCompletePushDown(candidates)) {
      return false;
    }
    schema = aggregates.schema();
    isAggregated = true;
    return true;
  }

  @Override
  public Scan build() {
    return new DatasetScan(
        dataset,
        schema,
        metadata,
        filter,
        Arrays.asList(pushed),
        limit,
        top,
        isAggregated ? aggregates : null);
  }
}
