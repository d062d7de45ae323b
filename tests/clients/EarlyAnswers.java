import java.io.FileInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** Requests without credentials with Java's client: URL CERTIFICATE LENGTH COUNT. Prints the statuses. */
public class EarlyAnswers {
    public static void main(String[] arguments) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (FileInputStream file = new FileInputStream(arguments[1])) {
            store.setCertificateEntry("a", CertificateFactory.getInstance("X.509").generateCertificate(file));
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        byte[] body = " ".repeat(Integer.parseInt(arguments[2])).getBytes();
        for (HttpClient.Version version : HttpClient.Version.values()) {
            HttpClient client = HttpClient.newBuilder().sslContext(context).version(version).build();
            for (int i = 0; i < Integer.parseInt(arguments[3]); i++) {
                HttpRequest request = HttpRequest.newBuilder(URI.create(arguments[0]))
                    .timeout(Duration.ofSeconds(10)).header("Content-Type", "application/json")
                    .PUT(HttpRequest.BodyPublishers.ofByteArray(body)).build();
                try {
                    System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
                } catch (java.io.IOException error) {
                    System.out.println(version + " " + error);
                }
            }
        }
    }
}
