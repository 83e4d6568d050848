"""Iceberg's own Java implementation as a judge: what it reads is right, and what it writes we must read.

pom.xml          its jars, which tests/jars.py gets
session.py       one Spark session and one PyIceberg catalog over the same SQLite file
java_writes.py   files that PyIceberg cannot write: equality deletes and position deletes made by Java
sharedtable.py   a table that both write in turns, and a model of its rows
ourturns.py      what PyArctic does to it
javaturns.py     what Java does to it
javacommits.py   parts of commits made with Java's own API
cluster.py       a real standalone Spark cluster on this machine
"""
