package io.splitarrow.spark;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A dataset. */
@SuppressWarnings("deprecation") // Spark still calls schema()
final class SplitArrowTable implements SupportsRead, SupportsWrite, SupportsMetadataColumns {
  private final String name;
  private final StructType schema;
  private final CaseInsensitiveStringMap options;
  private final Described described;
  private final Transform[] partitions;
  private final boolean isInCatalog;
  private Table python;

  SplitArrowTable(
      String name,
      StructType schema,
      CaseInsensitiveStringMap options,
      Described described,
      Transform[] partitions,
      boolean isInCatalog) {
    this.partitions = partitions.clone();
    this.name = name;
    this.schema = schema;
    this.options = options;
    this.described = described;
    this.isInCatalog = isInCatalog;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public StructType schema() {
    return schema;
  }

  /** Returns the column {@code _metadata}, which the Python source does not have. */
  @Override
  public MetadataColumn[] metadataColumns() {
    boolean isPython =
        ReaderChoice.of(options) == ReaderChoice.PYTHON
            || described != null && !described.isReadable();
    return isPython ? new MetadataColumn[0] : new MetadataColumn[] {RowMetadata.COLUMN};
  }

  @Override
  public Set<TableCapability> capabilities() {
    Set<TableCapability> capabilities =
        EnumSet.of(
            TableCapability.BATCH_READ,
            TableCapability.MICRO_BATCH_READ,
            TableCapability.STREAMING_WRITE,
            TableCapability.TRUNCATE);
    // Otherwise, Spark refuses the modes error and ignore of df.write before it asks.
    if (isInCatalog) {
      capabilities.add(TableCapability.BATCH_WRITE);
      capabilities.add(TableCapability.OVERWRITE_DYNAMIC);
      capabilities.add(TableCapability.OVERWRITE_BY_FILTER);
    }
    return capabilities;
  }

  @Override
  public Transform[] partitioning() {
    return described == null
        ? partitions.clone()
        : described.partitionBy().stream()
            .map(column -> Expressions.identity(Catalog.quote(column)))
            .toArray(Transform[]::new);
  }

  private synchronized Table python() {
    if (python == null) {
      python = PythonSource.of(options).table(schema);
    }
    return python;
  }

  private ScanBuilder pythonBuilder() {
    return ((SupportsRead) python()).newScanBuilder(PythonSource.without(options));
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap ignored) {
    ReaderChoice choice = ReaderChoice.of(options);
    if (choice == ReaderChoice.PYTHON) {
      return pythonBuilder();
    }
    Described dataset = described;
    if (dataset == null) {
      try {
        dataset = Described.of(options);
      } catch (IllegalArgumentException error) {
        if (choice == ReaderChoice.JVM || !PythonSource.isSupported()) {
          throw error;
        }
        return pythonBuilder(); // a stream may be what is read; a batch fails there as well
      }
    }
    String problem = dataset.isReadable() ? casts(dataset.schema()) : dataset.problem();
    if (problem != null) {
      choice.fallBack(dataset.dataset(), problem);
      return pythonBuilder();
    }
    return new DatasetScanBuilder(dataset, schema);
  }

  /** Returns what a schema that the user gave asks of the Python source; null if nothing. */
  private String casts(StructType found) {
    for (StructField field : schema.fields()) {
      StructField known = null;
      for (StructField candidate : found.fields()) {
        known = candidate.name().equals(field.name()) ? candidate : known;
      }
      if (known == null) {
        return "it has no column '" + field.name() + "'";
      }
      if (!DataType.equalsIgnoreNullability(known.dataType(), field.dataType())) {
        return "the schema asks for another type of '" + field.name() + "'";
      }
    }
    return null;
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    Map<String, String> values = new HashMap<>(options.asCaseSensitiveMap());
    ShardWriteBuilder.setPartitions(values, partitions);
    return new ShardWriteBuilder(values, info, false);
  }
}
