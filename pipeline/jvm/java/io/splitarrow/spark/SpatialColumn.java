package io.splitarrow.spark;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.spark.sql.types.DataType;

/**
 * A column of geometries or geographies, which Arrow has as WKB and Spark in a form of its own.
 *
 * <p>Spark has these types from 4.1 on, so their classes are found by name.
 */
final class SpatialColumn extends Column {
  private static final Pattern NAME = Pattern.compile("geo(metry|graphy)\\((\\d+)\\)");

  private final Column stored;
  private final Method fromWkb;
  private final Method serialize;
  private final int srid;

  SpatialColumn(DataType type, Column stored) throws ReadFailure {
    super(type, stored.length, Buffer.EMPTY, 0);
    this.stored = stored;
    Matcher name = NAME.matcher(type.typeName());
    boolean isGeometry = name.matches() && name.group(1).equals("metry");
    try {
      srid = Integer.parseInt(name.group(2));
      Class<?> value =
          Class.forName("org.apache.spark.sql.types." + (isGeometry ? "Geometry" : "Geography"));
      fromWkb = value.getMethod("fromWKB", byte[].class, int.class);
      serialize =
          Class.forName("org.apache.spark.sql.catalyst.util.STUtils")
              .getMethod(isGeometry ? "serializeGeomFromWKB" : "serializeGeogFromWKB",
                  value, type.getClass());
    } catch (ReflectiveOperationException | IllegalStateException | NumberFormatException error) {
      throw ReadFailure.invalid("this Spark cannot hold the type " + type.sql());
    }
  }

  static boolean isSpatial(DataType type) {
    return NAME.matcher(type.typeName()).matches();
  }

  @Override
  public boolean hasNull() {
    return stored.hasNull();
  }

  @Override
  public int numNulls() {
    return stored.numNulls();
  }

  @Override
  public boolean isNullAt(int row) {
    return stored.isNullAt(row);
  }

  /** Returns a value in the form of Spark, which checks that it is valid WKB. */
  @Override
  public byte[] getBinary(int row) {
    byte[] wkb = stored.getBinary(row);
    if (wkb == null) {
      return null;
    }
    try {
      Object value = serialize.invoke(null, fromWkb.invoke(null, wkb, srid), dataType());
      return (byte[]) value.getClass().getMethod("getBytes").invoke(value);
    } catch (InvocationTargetException error) {
      throw error.getCause() instanceof RuntimeException cause
          ? cause
          : new IllegalStateException(error.getCause());
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }
}
