"""Real services on this machine, so that what is promised about commits and streams is tried where they happen.

rest.py       Iceberg's own REST catalog server, in Java
guarded.py    a REST catalog in this process, whose tokens and storage credentials expire
faulty.py     a proxy before it, which loses, refuses, delays and repeats commits
postgres.py   PostgreSQL, for PyIceberg's SQL catalog
metastore.py  a Hive Metastore, in Java
glue.py       AWS Glue as moto plays it
kafka.py      a Kafka broker, in Java
catalogs.py   a fresh PyIceberg catalog on any of them
"""
