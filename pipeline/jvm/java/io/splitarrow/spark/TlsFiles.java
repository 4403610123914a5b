package io.splitarrow.spark;

import java.io.IOException;
import java.io.InputStream;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.Collection;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.net.ssl.KeyManager;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLEngine;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;

/**
 * The certificates of a connection with TLS, in PEM.
 *
 * <p>The variables {@code SPLITARROW_TLS_CA} and so on of the process apply if no file and no name is
 * given.
 *
 * @param authorities the trusted authorities; null for those of Java
 * @param certificate the certificate of the client; null if it has none
 * @param key its key in the form PKCS #8; null if it is in the same file
 * @param serverName the name that the server's certificate must have; null for its host
 */
record TlsFiles(String authorities, String certificate, String key, String serverName)
    implements Serializable {
  private static final String PREFIX = "SPLITARROW_TLS_";
  private static final char[] NO_PASSWORD = {};
  private static final Pattern CERTIFICATE =
      Pattern.compile("-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----");
  private static final Pattern KEY =
      Pattern.compile("-----BEGIN PRIVATE KEY-----([^-]+)-----END PRIVATE KEY-----");

  /** Returns the client's side of a connection. It requires TLS 1.3 and the server's name. */
  SSLEngine connect(String host, int port) throws IOException {
    if (authorities == null && certificate == null && key == null && serverName == null) {
      return new TlsFiles(variable("CA"), variable("CERT"), variable("KEY"), variable("SERVER_NAME"))
          .engine(host, port);
    }
    return engine(host, port);
  }

  private static String variable(String name) {
    String value = System.getenv(PREFIX + name);
    return value == null || value.isEmpty() ? null : value;
  }

  private SSLEngine engine(String host, int port) throws IOException {
    SSLEngine engine;
    try {
      SSLContext context = SSLContext.getInstance("TLSv1.3");
      context.init(keyManagers(), trustManagers(), null);
      engine = context.createSSLEngine(serverName == null ? host : serverName, port);
    } catch (GeneralSecurityException | IllegalArgumentException error) {
      throw new IOException("the files of TLS cannot be used: " + error.getMessage());
    }
    engine.setUseClientMode(true);
    SSLParameters parameters = engine.getSSLParameters();
    parameters.setProtocols(new String[] {"TLSv1.3"});
    parameters.setEndpointIdentificationAlgorithm("HTTPS");
    engine.setSSLParameters(parameters);
    return engine;
  }

  private TrustManager[] trustManagers() throws IOException, GeneralSecurityException {
    if (authorities == null) {
      return null;
    }
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    for (Certificate authority : certificates(authorities)) {
      store.setCertificateEntry("authority-" + store.size(), authority);
    }
    TrustManagerFactory factory =
        TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
    factory.init(store);
    return factory.getTrustManagers();
  }

  private KeyManager[] keyManagers() throws IOException, GeneralSecurityException {
    if (certificate == null) {
      return null;
    }
    String text = Files.readString(Path.of(key == null ? certificate : key), StandardCharsets.US_ASCII);
    Matcher match = KEY.matcher(text);
    if (!match.find()) {
      throw new IOException("the key of the certificate is not in the form PKCS #8");
    }
    PKCS8EncodedKeySpec encoded =
        new PKCS8EncodedKeySpec(Base64.getMimeDecoder().decode(match.group(1)));
    Certificate[] chain = certificates(certificate).toArray(Certificate[]::new);
    String algorithm = chain[0].getPublicKey().getAlgorithm();
    PrivateKey privateKey = KeyFactory.getInstance(algorithm).generatePrivate(encoded);
    KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
    store.load(null, null);
    store.setKeyEntry("client", privateKey, NO_PASSWORD, chain);
    KeyManagerFactory factory =
        KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    factory.init(store, NO_PASSWORD);
    return factory.getKeyManagers();
  }

  private static Collection<? extends Certificate> certificates(String path)
      throws IOException, GeneralSecurityException {
    StringBuilder certificates = new StringBuilder();
    Matcher match = CERTIFICATE.matcher(Files.readString(Path.of(path), StandardCharsets.US_ASCII));
    while (match.find()) {
      certificates.append(match.group()).append('\n');
    }
    byte[] bytes = certificates.toString().getBytes(StandardCharsets.US_ASCII);
    try (InputStream in = new java.io.ByteArrayInputStream(bytes)) {
      return CertificateFactory.getInstance("X.509").generateCertificates(in);
    }
  }
}
