import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Says whether Kafka accepts a change of a topic's configs. A line of standard input is the configs
 * before, a tab, and those afterwards, each as name=value, separated by commas. A line of the output
 * is empty, or the reason of the refusal.
 */
public final class TieredConfigOracle {
    /** Without a broker's defaults, Kafka checks no combinations. */
    private static final Map<String, ?> DEFAULTS = Map.of("retention.ms", 604_800_000L);

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t", -1);
            try {
                LogConfig.validate(parsed(parts[0]), parsed(parts[1]), DEFAULTS, true);
                System.out.println();
            } catch (Exception error) {
                System.out.println(error.getMessage().replace('\n', ' '));
            }
        }
    }

    private static Map<String, String> parsed(String text) {
        Map<String, String> found = new HashMap<>();
        for (String pair : text.isEmpty() ? new String[0] : text.split(",")) {
            String[] words = pair.split("=", 2);
            found.put(words[0], words[1]);
        }
        return found;
    }
}
