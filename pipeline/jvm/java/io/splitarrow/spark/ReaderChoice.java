package io.splitarrow.spark;

import java.util.Locale;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Which reader the option {@code reader} selects, or else the setting of the session. */
enum ReaderChoice {
  /** This reader, or the Python source for what it cannot read. */
  AUTO,
  JVM,
  PYTHON;

  static final String OPTION = "reader";
  private static final String SETTING = "spark.splitarrow.reader";
  private static final Logger LOG = LoggerFactory.getLogger("splitarrow");
  private static final Set<String> NOTICES = ConcurrentHashMap.newKeySet();

  static ReaderChoice of(CaseInsensitiveStringMap options) {
    String value = options.getOrDefault(OPTION, "");
    if (value.isEmpty()) {
      value = SQLConf.get().getConfString(SETTING, "auto");
    }
    return switch (value.toLowerCase(Locale.ROOT)) {
      case "auto", "" -> AUTO;
      case "jvm" -> JVM;
      case "python" -> PYTHON;
      default ->
          throw new IllegalArgumentException(
              "option 'reader' is '" + value + "'; it must be one of auto, jvm, python");
    };
  }

  /** Says once that the Python source reads a dataset, or refuses if this reader is required. */
  void fallBack(String dataset, String problem) {
    if (this == JVM) {
      throw new IllegalArgumentException(
          "the JVM reader cannot read '" + dataset + "': " + problem);
    }
    if (!PythonSource.isSupported()) {
      throw new IllegalArgumentException(
          "the JVM reader cannot read '" + dataset + "': " + problem + "; " + PythonSource.MISSING
              + ", which read the rest in Spark 4");
    }
    if (NOTICES.add(dataset + problem)) {
      LOG.warn("The Python source reads '{}', by rows: {}", dataset, problem);
    }
  }
}
