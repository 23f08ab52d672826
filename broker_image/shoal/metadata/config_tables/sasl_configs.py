"""Broker configs of SASL: how clients of a listener log in, and what GSSAPI alone would use.

Each may be set for one listener and one mechanism (`listener_configs`).
"""

from __future__ import annotations

from shoal.metadata.config_keys import parse_table

SASL = parse_table(
    """
# applied: SASL
sasl.enabled.mechanisms list GSSAPI - per-broker
    SASL mechanisms of a listener: SCRAM-SHA-512, SCRAM-SHA-256, OAUTHBEARER, PLAIN. A listener with
    SASL needs at least one. Kafka's default GSSAPI is not supported.
sasl.jaas.config password - @jaas per-broker
    Login module of a mechanism, with its options. For PLAIN, the users and passwords, as
    user_alice="secret". It is set for one listener and mechanism, as
    listener.name.external.plain.sasl.jaas.config.
sasl.server.max.receive.size int 524288 -
    Maximum size of a request of a client that has not logged in.
connection.failed.authentication.delay.ms int 100 0..
    Time by which the response to a failed login and the end of the connection are delayed.
connections.max.reauth.ms long 0 -
    Time after which a client must log in again on its connection (KIP-368). 0 means never, except
    for bearer tokens and delegation tokens, which expire.
shoal.sasl.scram.disconnect.removed.users boolean true -
    Whether to close the connections of a user when its SCRAM credential is removed. With false, as
    in Kafka, they stay open until connections.max.reauth.ms. A new password closes none.
sasl.server.callback.handler.class class - @token-handler
    How bearer tokens are verified: OAuthBearerValidatorCallbackHandler verifies signatures, and
    OAuthBearerUnsecuredValidatorCallbackHandler accepts tokens that anyone can make, for tests.
    Write the names with Kafka's packages. If unset, signatures are verified.
sasl.oauthbearer.jwks.endpoint.url string - -
    URL of the keys that sign bearer tokens (JWKS). https is always permitted; file and http need
    shoal.oauthbearer.allowed.urls.
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000 1..
    Interval at which the keys are read. A token with an unknown key id makes the broker read them
    earlier.
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 1..
    Pause after the first failed attempt to read the keys. It doubles with each attempt.
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 1..
    Maximum pause between two attempts to read the keys.
shoal.oauthbearer.allowed.urls list "" -
    URLs of keys that may use the scheme file or http. In Kafka, this is the Java property
    org.apache.kafka.sasl.oauthbearer.allowed.urls.
sasl.oauthbearer.clock.skew.seconds int 30 0..
    Difference between the clocks of the provider and of the broker that is allowed in the dates of
    a token.
sasl.oauthbearer.expected.audience list "" -
    Audiences, one of which a token must name. If empty, tokens that name an audience are refused.
sasl.oauthbearer.allow.unverified.audience boolean false -
    Whether the audience of a token is not compared, if sasl.oauthbearer.expected.audience is empty.
sasl.oauthbearer.expected.issuer string - -
    Issuer that a token must name. If unset, any issuer.
sasl.oauthbearer.scope.claim.name string scope -
    Claim with the scope of a token.
sasl.oauthbearer.sub.claim.name string sub -
    Claim with the user name of a token.
# refused: GSSAPI
sasl.kerberos.kinit.cmd string /usr/bin/kinit - per-broker
    GSSAPI is not supported. Use SCRAM-SHA-512, OAUTHBEARER or PLAIN.
sasl.kerberos.min.time.before.relogin long 60000 - per-broker
    GSSAPI is not supported. Use SCRAM-SHA-512, OAUTHBEARER or PLAIN.
sasl.kerberos.principal.to.local.rules list DEFAULT - per-broker
    GSSAPI is not supported. Use SCRAM-SHA-512, OAUTHBEARER or PLAIN.
sasl.kerberos.service.name string - - per-broker
    GSSAPI is not supported. Use SCRAM-SHA-512, OAUTHBEARER or PLAIN.
sasl.kerberos.ticket.renew.jitter double 0.05 - per-broker
    GSSAPI is not supported. Use SCRAM-SHA-512, OAUTHBEARER or PLAIN.
sasl.kerberos.ticket.renew.window.factor double 0.8 - per-broker
    GSSAPI is not supported. Use SCRAM-SHA-512, OAUTHBEARER or PLAIN.
"""
)
