import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Names of subjects as Java writes them, and as Kafka maps them. A line on standard input is
 * "name DER" or "map RULES SUBJECT", with arguments in Base64 after "=". The answer is a line with
 * the name in Base64, or "error".
 */
public class Principals {
    public static void main(String[] args) throws Exception {
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            String answer;
            try {
                String found = words[0].equals("name")
                    ? new X500Principal(bytes(words[1])).getName()
                    : SslPrincipalMapper.fromRules(text(words[1])).getName(text(words[2]));
                answer = "=" + Base64.getEncoder().encodeToString(
                    found.getBytes(StandardCharsets.UTF_8));
            } catch (Exception error) {
                answer = "error " + error;
            }
            System.out.println(answer.replace("\n", " "));
        }
    }

    private static byte[] bytes(String word) {
        return Base64.getDecoder().decode(word.substring(1));
    }

    private static String text(String word) {
        return new String(bytes(word), StandardCharsets.UTF_8);
    }
}
