FROM rust:1.95-slim-bookworm AS build
# For what is built from source with it: Kafka's client (C and C++) and, for TLS towards Kafka, OpenSSL (Perl).
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make perl \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY . .
RUN cargo build --release --locked --features kafka-tls --bin mandate

FROM debian:bookworm-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 mandate \
    && useradd --uid 10001 --gid mandate --home-dir /var/lib/mandate --create-home --shell /usr/sbin/nologin mandate
COPY --from=build /build/target/release/mandate /usr/local/bin/mandate
# The signing key lives here: keep it in a volume, or give MANDATE_AUTH__SIGNING_KEY.
WORKDIR /var/lib/mandate
ENV MANDATE_AUTH__DATA_FOLDER=/var/lib/mandate \
    MANDATE_SERVER__LISTEN=0.0.0.0:8080 \
    MANDATE_TELEMETRY__LOG_FORMAT=json
# By number, so that a cluster that demands a user other than root can tell that it is none.
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["mandate", "healthcheck", "--url", "http://127.0.0.1:8080/readyz"]
ENTRYPOINT ["mandate"]
CMD ["serve"]
