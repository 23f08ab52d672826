import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.Scanner;
import java.util.TreeMap;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;

/** Parses JAAS configs as Kafka does: a line of Base64 in, a line of Base64 words or "error" out. */
class Jaas {
    static String word(String text) {
        byte[] bytes = String.valueOf(text).getBytes(StandardCharsets.UTF_8);
        return text == null ? "-" : "." + Base64.getEncoder().encodeToString(bytes);
    }

    static String parsed(String text) {
        try {
            AppConfigurationEntry entry = JaasContext.loadClientContext(
                Map.of("sasl.jaas.config", new Password(text))).configurationEntries().get(0);
            StringBuilder out = new StringBuilder(word(entry.getLoginModuleName()));
            out.append(' ').append(entry.getControlFlag().toString().split(": ")[1]);
            Map<String, Object> options = new TreeMap<>(
                java.util.Comparator.nullsFirst(java.util.Comparator.naturalOrder()));
            options.putAll(entry.getOptions());
            options.forEach((name, value) ->
                out.append(' ').append(word(name)).append(':').append(word((String) value)));
            return out.toString();
        } catch (RuntimeException error) {
            return "error";
        }
    }

    public static void main(String[] words) {
        Scanner in = new Scanner(System.in, StandardCharsets.UTF_8);
        while (in.hasNextLine()) {
            byte[] bytes = Base64.getDecoder().decode(in.nextLine());
            System.out.println(parsed(new String(bytes, StandardCharsets.UTF_8)));
        }
    }
}
