// Kafka's StandardAuthorizer answers questions about access control entries:
// tests/compat/oracles/test_authorizer.py starts this.
//
// Lines of standard input, their words separated by tabs:
//   new SUPER_USERS ALLOW_IF_NO_ACL   an authorizer without entries
//   acl TYPE NAME PATTERN PRINCIPAL HOST OPERATION PERMISSION
//   ask PRINCIPAL HOST OPERATION TYPE NAME
//   any PRINCIPAL HOST OPERATION TYPE
// Enumerated words are Kafka's codes. Each `ask` and `any` prints a line: 1 for allowed, else 0.
// Hosts of entries are written as Java writes addresses, because Kafka compares them as texts.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.internals.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

public class AuthorizerOracle {
    record Context(KafkaPrincipal principal, InetAddress clientAddress)
            implements AuthorizableRequestContext {
        public String listenerName() {
            return "PLAINTEXT";
        }

        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.PLAINTEXT;
        }

        public int requestType() {
            return 3;
        }

        public int requestVersion() {
            return 12;
        }

        public String clientId() {
            return "oracle";
        }

        public int correlationId() {
            return 0;
        }
    }

    private static StandardAuthorizer authorizer;
    private static final Map<Uuid, StandardAcl> entries = new HashMap<>();
    private static boolean loaded;

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        StringBuilder out = new StringBuilder();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split("\t", -1);
            switch (words[0]) {
                case "new" -> begin(words);
                case "acl" -> entries.put(Uuid.randomUuid(), acl(words));
                default -> out.append(ask(words) ? "1\n" : "0\n");
            }
        }
        System.out.print(out);
    }

    private static void begin(String[] words) {
        authorizer = new StandardAuthorizer();
        Map<String, Object> configs = new HashMap<>();
        configs.put("super.users", words[1]);
        configs.put("allow.everyone.if.no.acl.found", words[2]);
        configs.put("node.id", "1");
        authorizer.configure(configs);
        authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
        entries.clear();
        loaded = false;
    }

    private static StandardAcl acl(String[] words) throws Exception {
        String host = words[5].equals("*") || words[5].contains("/")
            ? words[5] : InetAddress.getByName(words[5]).getHostAddress();
        return new StandardAcl(
            ResourceType.fromCode(Byte.parseByte(words[1])),
            words[2],
            PatternType.fromCode(Byte.parseByte(words[3])),
            words[4],
            host,
            AclOperation.fromCode(Byte.parseByte(words[6])),
            AclPermissionType.fromCode(Byte.parseByte(words[7])));
    }

    private static boolean ask(String[] words) throws Exception {
        if (!loaded) {
            authorizer.loadSnapshot(entries);
            authorizer.completeInitialLoad();
            loaded = true;
        }
        Context context = new Context(
            SecurityUtils.parseKafkaPrincipal(words[1]), InetAddress.getByName(words[2]));
        AclOperation operation = AclOperation.fromCode(Byte.parseByte(words[3]));
        ResourceType type = ResourceType.fromCode(Byte.parseByte(words[4]));
        if (words[0].equals("any")) {
            return authorizer.authorizeByResourceType(context, operation, type)
                == AuthorizationResult.ALLOWED;
        }
        ResourcePattern resource = new ResourcePattern(type, words[5], PatternType.LITERAL);
        Action action = new Action(operation, resource, 1, false, false);
        return authorizer.authorize(context, List.of(action)).get(0)
            == AuthorizationResult.ALLOWED;
    }
}
