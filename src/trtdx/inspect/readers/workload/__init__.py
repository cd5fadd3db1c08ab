"""Files that start containers and jobs: compose, Kubernetes, Dockerfiles, sbatch."""
