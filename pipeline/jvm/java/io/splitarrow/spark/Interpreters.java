package io.splitarrow.spark;

import org.apache.spark.SparkEnv;
import org.apache.spark.sql.internal.SQLConf;

/** The Python interpreters of the driver and the executors, found as Spark finds them. */
final class Interpreters {
  // `register` sets these.
  private static final String DRIVER_SETTING = "spark.splitarrow.driver.python";
  private static final String EXECUTOR_SETTING = "spark.splitarrow.executor.python";

  private Interpreters() {}

  static String driver() {
    return first(
        SQLConf.get().getConfString(DRIVER_SETTING, ""),
        setting("spark.pyspark.driver.python"),
        System.getenv("PYSPARK_DRIVER_PYTHON"),
        setting("spark.pyspark.python"),
        System.getenv("PYSPARK_PYTHON"),
        "python3");
  }

  /** Returns the interpreter of the executors' Python workers. */
  static String executor() {
    return first(
        SQLConf.get().getConfString(EXECUTOR_SETTING, ""),
        setting("spark.pyspark.python"),
        System.getenv("PYSPARK_PYTHON"),
        "python3");
  }

  private static String setting(String name) {
    SparkEnv env = SparkEnv.get();
    return env == null ? null : env.conf().get(name, "");
  }

  private static String first(String... candidates) {
    for (String candidate : candidates) {
      if (candidate != null && !candidate.isEmpty()) {
        return candidate;
      }
    }
    throw new AssertionError();
  }
}
