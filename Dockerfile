# The test suite in a container: docker build -t sacmil-dev . && docker run --rm --shm-size=2g sacmil-dev
# Also the container of .devcontainer/devcontainer.json.
FROM python:3.12-slim-trixie

# chromium is for the tests of the viewer's page, nodejs and npm build the page.
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends chromium git make nodejs npm procps \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /sacmil
COPY pyproject.toml constraints.txt Makefile README.md LICENSE ./
COPY src src
COPY web web
RUN make install viewer
COPY . .
CMD ["make", "test"]
