"""How long jobs run: tables of measured runs, queries as DAGs, configurations to choose from.

Jobs here are of any kind (Hadoop, Spark, queries, trainings): what is known of one is a row of a
table. Nothing in this package reads a clock, starts a run or knows a cluster's journal.
"""
