package io.splitarrow.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.StagingTableCatalog;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The datasets of daemons as tables: {@code spark.sql.catalog.arrow=io.splitarrow.spark.Catalog}.
 *
 * <p>The settings below that name, such as {@code spark.sql.catalog.arrow.uri}, are options of the
 * data source. A dataset is a table without a namespace.
 */
public final class Catalog implements StagingTableCatalog {
  private static final String CHANGES =
      "splitarrow changes no columns or names of a dataset; create another one from it";

  private String name;
  private CaseInsensitiveStringMap options;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
    this.options = options;
    if (!options.containsKey("uri")) {
      throw new IllegalArgumentException(
          "the catalog "
              + name
              + " needs the setting spark.sql.catalog."
              + name
              + ".uri, such as grpc://host:8815");
    }
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public Identifier[] listTables(String[] namespace) {
    List<Identifier> found = new ArrayList<>();
    if (namespace.length == 0) {
      for (JsonNode dataset : ask("list", "-").get("datasets")) {
        found.add(Identifier.of(namespace, dataset.asText()));
      }
    }
    return found.toArray(Identifier[]::new);
  }

  @Override
  public Table loadTable(Identifier table) throws NoSuchTableException {
    return load(table, Map.of());
  }

  @Override
  public Table loadTable(Identifier table, String version) throws NoSuchTableException {
    return load(table, Map.of("version", version));
  }

  @Override
  public Table loadTable(Identifier table, long timestamp) {
    throw new UnsupportedOperationException(
        "splitarrow finds versions by their number; use VERSION AS OF");
  }

  private Table load(Identifier table, Map<String, String> more) throws NoSuchTableException {
    if (table.namespace().length > 0) {
      throw new NoSuchTableException(table);
    }
    Map<String, String> values = values(table.name());
    values.putAll(more);
    try {
      return SplitArrowSource.load(
          name + "." + table.name(), new CaseInsensitiveStringMap(values));
    } catch (Planner.Missing error) {
      throw new NoSuchTableException(table);
    }
  }

  private Map<String, String> values(String dataset) {
    Map<String, String> values = new HashMap<>(options.asCaseSensitiveMap());
    values.put("dataset", dataset);
    return values;
  }

  private JsonNode ask(String operation, String dataset) {
    ObjectNode request = Json.MAPPER.createObjectNode();
    request.put("operation", operation);
    request.set("options", Json.MAPPER.valueToTree(values(dataset)));
    return Planner.call(Interpreters.driver(), request);
  }

  /** Removes a dataset from its daemons, which must allow it. */
  @Override
  public boolean dropTable(Identifier table) {
    try {
      if (table.namespace().length == 0) {
        ask("drop", table.name());
        return true;
      }
    } catch (Planner.Missing error) {
      // Spark says that there is no such table.
    }
    return false;
  }

  @Override
  @SuppressWarnings("deprecation") // Spark 3.5 has no other that is abstract
  public Table createTable(
      Identifier table,
      StructType schema,
      Transform[] partitions,
      Map<String, String> properties)
      throws NoSuchNamespaceException {
    stage(table, schema, partitions, properties, false).commitStagedChanges();
    try {
      return loadTable(table);
    } catch (NoSuchTableException error) {
      throw new IllegalStateException("the dataset was removed right after it was created", error);
    }
  }

  @Override
  @SuppressWarnings("deprecation")
  public StagedTable stageCreate(
      Identifier table,
      StructType schema,
      Transform[] partitions,
      Map<String, String> properties)
      throws NoSuchNamespaceException {
    return stage(table, schema, partitions, properties, false);
  }

  @Override
  @SuppressWarnings("deprecation")
  public StagedTable stageReplace(
      Identifier table,
      StructType schema,
      Transform[] partitions,
      Map<String, String> properties)
      throws NoSuchNamespaceException, NoSuchTableException {
    if (!tableExists(table)) {
      throw new NoSuchTableException(table);
    }
    return stage(table, schema, partitions, properties, true);
  }

  @Override
  @SuppressWarnings("deprecation")
  public StagedTable stageCreateOrReplace(
      Identifier table,
      StructType schema,
      Transform[] partitions,
      Map<String, String> properties)
      throws NoSuchNamespaceException {
    return stage(table, schema, partitions, properties, true);
  }

  private StagedDataset stage(
      Identifier table,
      StructType schema,
      Transform[] partitions,
      Map<String, String> properties,
      boolean replaces)
      throws NoSuchNamespaceException {
    if (table.namespace().length > 0) {
      throw new NoSuchNamespaceException(table.namespace());
    }
    Map<String, String> values = values(table.name());
    properties.forEach(
        (key, value) -> {
          if (key.startsWith(TableCatalog.OPTION_PREFIX)) {
            values.put(key.substring(TableCatalog.OPTION_PREFIX.length()), value);
          }
        });
    return StagedDataset.of(name + "." + table.name(), schema, partitions, values, replaces);
  }

  /** Returns the name of a column as an identifier of SQL. */
  static String quote(String column) {
    return "`" + column.replace("`", "``") + "`";
  }

  @Override
  public Table alterTable(Identifier table, TableChange... changes) {
    throw new UnsupportedOperationException(CHANGES);
  }

  @Override
  public void renameTable(Identifier table, Identifier renamed) {
    throw new UnsupportedOperationException(CHANGES);
  }
}
