package io.splitarrow.spark;

import java.util.OptionalLong;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.NumericType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;

/** The rows that a scan may have, and their size in bytes. */
record Estimate(OptionalLong sizeInBytes, OptionalLong numRows) implements Statistics {

  /**
   * Estimates the size of some columns of rows.
   *
   * <p>Numbers and times have a known width. The other columns share the rest of the bytes.
   *
   * @param all the columns of the dataset
   * @param wanted the columns that are read
   * @param rows the number of rows; negative if unknown
   * @param bytes the size of the rows with all columns at the server; negative if unknown
   */
  static Estimate of(StructType all, StructType wanted, long rows, long bytes) {
    OptionalLong count = rows < 0 ? OptionalLong.empty() : OptionalLong.of(rows);
    if (bytes < 0) {
      return new Estimate(OptionalLong.empty(), count);
    }
    double part = (double) Math.max(8, wanted.defaultSize()) / Math.max(8, all.defaultSize());
    double size = bytes * Math.min(1, part);
    if (rows >= 0) {
      double rest = Math.max(0, bytes - (double) rows * widths(all, true));
      double share = widths(wanted, false) / Math.max(1, widths(all, false));
      double whole = widths(wanted, false) / Math.max(8, all.defaultSize());
      // Compressed or encoded columns are larger in memory than at the server.
      size = (double) rows * widths(wanted, true) + Math.max(rest * share, bytes * whole);
      size = Math.max(size, rows * 8.0);
    }
    return new Estimate(OptionalLong.of((long) Math.min(size, Long.MAX_VALUE)), count);
  }

  /** Returns the width of a row in the columns of a fixed width, or in the others. */
  private static double widths(StructType schema, boolean fixed) {
    double sum = 0;
    for (StructField field : schema.fields()) {
      sum += isFixed(field.dataType()) == fixed ? field.dataType().defaultSize() : 0;
    }
    return sum;
  }

  private static boolean isFixed(DataType type) {
    return type instanceof NumericType
        || type instanceof DateType
        || type instanceof TimestampType
        || type instanceof TimestampNTZType;
  }
}
