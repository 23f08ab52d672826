// Prints the definitions of Kafka's configs for tests/compat/oracles/test_configs.py: a line
// for each, as kind, name, type, default, validator, whether it is internal, and the scope at which
// a running broker's config can be altered, with tabs between them.

import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;

public final class ConfigDefinitions {
    private static final Map<String, String> SCOPES = DynamicBrokerConfig.dynamicConfigUpdateModes();

    public static void main(String[] args) {
        print("broker", AbstractKafkaConfig.CONFIG_DEF.configKeys());
        print("topic", LogConfig.configDefCopy().configKeys());
        print("group", GroupConfig.CONFIG_DEF.configKeys());
        print("client-metrics", ClientMetricsConfigs.configDef().configKeys());
    }

    private static void print(String kind, Map<String, ConfigDef.ConfigKey> keys) {
        for (ConfigDef.ConfigKey key : keys.values()) {
            String value = key.hasDefault()
                ? String.valueOf(ConfigDef.convertToString(key.defaultValue, key.type)) : "none";
            System.out.println(String.join("\t", kind, key.name, key.type.name(), value,
                String.valueOf(key.validator), String.valueOf(key.internalConfig),
                SCOPES.getOrDefault(key.name, "read-only")));
        }
    }
}
